import pytest
from synthetic_runs import make_runs

from cop2l.report.page import page
from cop2l.report.runs import find_runs


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Run directories with invented numbers; read only."""
    return make_runs(tmp_path_factory.mktemp("invented"))


@pytest.fixture(scope="session")
def run_set(folder):
    return find_runs([folder])


@pytest.fixture(scope="session")
def html(run_set):
    return page(run_set)
