"""Experiments: configuration, the run, the sweep, the run directory."""
