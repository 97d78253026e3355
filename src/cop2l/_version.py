"""The version, alone, so that reading it imports nothing.

Raise it whenever what is learned changes by a bit: a certificate is made again, bit for bit, by the same version only.
"""

__version__ = "0.1.0.dev2"
