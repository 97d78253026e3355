import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from cop2l.experiments import grid
from cop2l.experiments.run import run as experiment

LONG = 120
"""Seconds after which a test that waits gives up."""


class Server:
    """A server in a process of its own, asked over HTTP."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cop2l", *map(str, words), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        found = re.search(r"(http://\S+)/ \(Ctrl-C stops it\)", line)
        assert found, (line, self.process.stderr.read())
        self.url = found[1]
        self.address = tuple(self.url.removeprefix("http://").rsplit(":", 1))

    def ask(self, path, body=None, *, kind="application/json", method=None, headers=()):
        """The status and the text of an answer; `body` is sent as JSON unless it is bytes."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**({"Content-Type": kind} if body is not None else {}), **dict(headers)}
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LONG) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path, body=None, **more):
        status, text = self.ask(path, body, **more)
        return status, json.loads(text)

    def stop(self, how=signal.SIGINT):
        """Its exit code and what it said, after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=LONG)
        return self.process.returncode, out, err


@pytest.fixture(scope="session")
def server_class():
    return Server


@pytest.fixture
def started():
    """Starts servers, and ends those that a test has left."""
    servers = []

    def start(*words):
        servers.append(Server(*words))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Four clouds in the plane."""
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    draws, y = np.random.default_rng(0), np.arange(400) % 4
    centres = np.array([[0, 0], [4, 0], [0, 4], [4, 4]])
    x = (draws.normal(size=(400, 2)) / 2 + centres[y]).astype(np.float32)
    np.savez(path, x=x, y=y, x_test=x[:40], y_test=y[:40])
    return path


@pytest.fixture(scope="session")
def run(data, tmp_path_factory):
    """A finished run of two tasks with a certificate."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    table = {"stream": str(data), "tasks": 2, "model": "mlp", "architecture": {"hidden": 16}, "memory": 60}
    experiment(grid.single(table | {"epochs": 5, "lr": 0.3}), folder)
    return folder


@pytest.fixture
def until():
    """Wait until something is true, and hand it on."""

    def wait(look):
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.1)
        raise AssertionError("it did not happen")

    return wait
