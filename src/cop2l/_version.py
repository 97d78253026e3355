"""The version, alone, so that reading it imports nothing. The learned bits have a version of their own: `kernel.exact.BITS`."""

__version__ = "0.2.0"
