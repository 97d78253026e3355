"""`python -m cop2l` with one rank that fails: RANK FAILURE, then the arguments of cop2l."""

import os
import signal
import sys
import time

from cop2l.certify.fast import FastLearner
from cop2l.cli import main
from cop2l.errors import UserError

TASK, ITERATION = 2, 3


def fail(failure):
    if failure == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == "hangs":
        time.sleep(600)
    raise UserError("This rank has an error of its own.")


def failing(rank, failure):
    """Let a rank fail in the middle of a task."""
    record = FastLearner._record

    def fail_there(engine, iteration, *arguments):
        if os.environ["RANK"] == rank and (engine.task, iteration) == (TASK, ITERATION):
            fail(failure)
        record(engine, iteration, *arguments)

    FastLearner._record = fail_there


if __name__ == "__main__":
    failing(*sys.argv[1:3])
    sys.exit(main(sys.argv[3:]))
