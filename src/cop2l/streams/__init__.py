"""Streams of tasks: how labelled data is cut, and where it comes from."""
