"""`python -m cop2l` with one rank that fails in the middle of a task: RANK FAILURE, then the arguments of cop2l."""

import os
import signal
import sys
import time

from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.learner.engine import Engine

TASK, ITERATION = 2, 3
TO_TORCHRUN = {"is interrupted": signal.SIGINT, "is stopped": signal.SIGTERM}
"""Signals that reach torchrun alone, which hands them on."""


class SlowError(UserError):
    """An error that is printed slowly: torchrun stops all ranks in the meantime."""

    def __str__(self):
        time.sleep(3)
        return super().__str__()


def fail(failure):
    if failure == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == "errs":
        raise SlowError("This rank has an error of its own.")
    if failure in TO_TORCHRUN:
        os.kill(os.getppid(), TO_TORCHRUN[failure])
    time.sleep(600)


def failing(rank, failure):
    observe = Engine.observe

    def observe_and_fail(engine, event):
        if os.environ["RANK"] == rank and (event["task"], event["iteration"]) == (TASK, ITERATION):
            fail(failure)
        observe(engine, event)

    Engine.observe = observe_and_fail


if __name__ == "__main__":
    failing(*sys.argv[1:3])
    sys.exit(main(sys.argv[3:]))
