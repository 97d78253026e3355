"""`python -m cop2l` is the command `cop2l`."""

import os
import sys

# Nothing is imported from the current folder.
sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") != os.path.realpath(".")]

from cop2l.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
