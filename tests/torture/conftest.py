"""Honest runs that several tests attack; each is made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    from torture_bases import bases

    return bases(tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    from torture_runs import made

    folder = tmp_path_factory.mktemp("runs")
    made(folder)
    return folder
