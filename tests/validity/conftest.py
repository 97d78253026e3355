"""The issuer of the simulations does not look for shared rows: a control must break its bound, not be caught before."""

import pytest


@pytest.fixture(autouse=True)
def not_looked_for(monkeypatch):
    monkeypatch.setattr("cop2l.certify.learner.shared_row_findings", lambda *_: [])
