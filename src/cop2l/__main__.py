"""`python -m cop2l` is the command `cop2l`."""

import os
import sys

here = os.path.realpath(".")
sys.path[:] = [
    path for path in sys.path if os.path.realpath(path or ".") != here
]  # nothing of the current folder is imported

from cop2l.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
