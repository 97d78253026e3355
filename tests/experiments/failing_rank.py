"""`python -m cop2l`, but one rank fails on its way: RANK HOW, then the command line."""

import os
import signal
import sys
import time

from cop2l.certify.fast import FastLearner
from cop2l.cli import main
from cop2l.errors import UserError

TASK, ITERATION = 2, 3


def fail(how):
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(600)
    raise UserError("This rank has an error of its own.")


def failing(rank, how):
    """From now on this rank fails in the middle of a task."""
    record = FastLearner._record

    def fail_there(engine, iteration, *more):
        if os.environ["RANK"] == rank and (engine.task, iteration) == (TASK, ITERATION):
            fail(how)
        record(engine, iteration, *more)

    FastLearner._record = fail_there


if __name__ == "__main__":
    failing(*sys.argv[1:3])
    sys.exit(main(sys.argv[3:]))
