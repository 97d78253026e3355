import importlib
import io
import itertools
import os
import shutil
import signal
import subprocess
from contextlib import redirect_stderr, redirect_stdout

import pytest

# before torch is imported: a fork of a process with threads hangs
os.environ.setdefault("OMP_NUM_THREADS", "1")
# a shell starts what runs in its background without Ctrl-C, which some tests send
signal.signal(signal.SIGINT, signal.default_int_handler)
NUMBERS = itertools.count()


@pytest.fixture
def chromium():
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine: the page is not tested in a browser")
    return browser


@pytest.fixture(autouse=True)
def private_home(request, monkeypatch, tmp_path_factory):
    """Every test has a cache of its own, and never sees the data of the machine; those that download share theirs."""
    if "network" in request.keywords:
        return None
    home = tmp_path_factory.getbasetemp() / f"home-{next(NUMBERS)}"  # a folder is made where it is used
    monkeypatch.setenv("COP2L_HOME", str(home))
    monkeypatch.delenv("COP2L_DATA", raising=False)
    return home


@pytest.fixture
def alarm():
    """Ends a test that waits: who opens a FIFO for reading waits for somebody to write."""

    def end(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def checker_in_this_process(request, monkeypatch):
    """The checker and what it starts run here, which saves the time to start processes; mark `processes` to have them."""
    if "processes" in request.keywords:
        return
    start = subprocess.run

    def run(words, *more, **how):
        name = words[3] if isinstance(words, list) and words[1:3] == ["-P", "-m"] else ""
        if name not in ("cop2l.kernel", "cop2l.audit.blind"):
            return start(words, *more, **how)
        module = importlib.import_module("cop2l.kernel.__main__" if name == "cop2l.kernel" else name)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = module.main(words[4:])
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(subprocess, "run", run)
