import signal

import pytest


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """An empty current folder; the handler of SIGTERM is restored."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
