import pytest
from audit_cases import made, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "mine.npz")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "run", data)
