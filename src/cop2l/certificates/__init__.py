"""Certificates: their statements, files, commitments and programs."""
