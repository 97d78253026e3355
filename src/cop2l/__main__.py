"""`python -m cop2l` is the command `cop2l`."""

import sys

from cop2l.cli import main

if __name__ == "__main__":
    sys.exit(main())
