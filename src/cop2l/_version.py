"""The version, alone, so that reading it imports nothing. What is learned has a number of its own: `kernel.verify.BITS`."""

__version__ = "0.2.0"
