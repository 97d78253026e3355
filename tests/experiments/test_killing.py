"""A run that is killed by SIGKILL at any moment continues, and ends with the same bits."""

import os
import signal
import time
from pathlib import Path

import pytest
from run_files import configured, content

from cop2l.errors import UserError
from cop2l.experiments.run import run
from cop2l.experiments.sweep import warm_context

REPLAY = ("method=replay", "holdout=0.2", "tasks=2", "epochs=1")


@pytest.fixture(scope="module")
def context():
    warm = warm_context()
    process = warm.Process(target=print)
    process.start()
    process.join()  # the server is up, and torch imported
    return warm


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    configs = {"cop2l": configured("holdout=0.2", "data.n=400"), "replay": configured(*REPLAY)}
    for name, config in configs.items():
        run(config, folder / name)
    return configs, {name: content(folder / name) for name in configs}


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


def test_killed_at_every_operation_on_files(tmp_path, context, uninterrupted):
    configs, expected = uninterrupted
    config, operation, deaths = configs["replay"], 0, 0
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        process = context.Process(target=dying, args=(config, folder, operation))
        process.start()
        process.join()
        run(config, folder)
        assert content(folder) == expected["replay"], operation
        if process.exitcode == 0:
            break
        deaths += process.exitcode == -signal.SIGKILL
    assert deaths == operation - 1 > 30


def test_two_processes_on_one_directory(tmp_path, context, uninterrupted):
    config = uninterrupted[0]["cop2l"]
    process = context.Process(target=run, args=(config, tmp_path / "run"))
    process.start()
    try:
        while not (tmp_path / "run" / "config.json").exists():
            time.sleep(0.01)
        with pytest.raises(UserError, match=f"Another process .process {process.pid} on"):
            run(config, tmp_path / "run")
    finally:
        process.join()
    assert process.exitcode == 0
    assert content(tmp_path / "run") == uninterrupted[1]["cop2l"]
