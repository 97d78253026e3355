"""Loads data for the kernel, which decides alone, and runs methods for it; this package can lower a verdict, never raise it."""
