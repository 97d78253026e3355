import signal

import pytest


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """An empty folder to work in; what a command does about signals is undone."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
