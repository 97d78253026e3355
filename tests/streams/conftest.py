"""Every test has a cache of its own, and never sees the data of the machine."""

import pytest


@pytest.fixture(autouse=True)
def private_home(monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("COP2L_HOME", str(home))
    monkeypatch.delenv("COP2L_DATA", raising=False)
    return home
