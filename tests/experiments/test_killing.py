"""A run that is killed by SIGKILL at any moment continues, and ends with the same bits."""

import os
import signal
from pathlib import Path

from run_files import configured, content

from cop2l.experiments.run import run
from cop2l.experiments.sweep import warm_context

CONFIG = configured("method=replay", "holdout=0.2", "tasks=2", "epochs=1", "claim=tasks,forgetting")


def dying(config, folder, operation):
    """Run, and be killed at the n-th operation on files."""
    left = operation

    def counted(function):
        def count(*arguments, **keywords):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return count

    path_names, os_names = ("rename", "replace", "mkdir"), ("fsync", "rmdir", "unlink")
    for owner, name in (*((Path, name) for name in path_names), *((os, name) for name in os_names)):
        setattr(owner, name, counted(getattr(owner, name)))
    run(config, folder)


def test_killed_at_every_operation_on_files(tmp_path):
    run(CONFIG, tmp_path / "uninterrupted")
    expected, context = content(tmp_path / "uninterrupted"), warm_context()
    operation, deaths = 0, 0
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        process = context.Process(target=dying, args=(CONFIG, folder, operation))
        process.start()
        process.join()
        run(CONFIG, folder)
        assert content(folder) == expected, operation
        if process.exitcode == 0:
            break
        deaths += process.exitcode == -signal.SIGKILL
    assert deaths == operation - 1 > 30
