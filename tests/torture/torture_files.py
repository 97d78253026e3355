"""Hostile files: what may lie where a certificate should, from a cut text to a FIFO."""

import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from torture_bases import Base, Certificate, planned
from torture_judge import Case
from torture_mutations import at, leaves

from cop2l.files import file_digest
from cop2l.kernel.form import VERSION, canonical_json, content_digest

TEXT = "certificate.json"
TENSORS = ("sets.safetensors", "theta.safetensors", "theta_0.safetensors")
LIMIT = ("--limit", "1e10")
ESCAPES = (
    "\x1b[2J\x1b[1;31mVALID",
    "\u202eDILAV",
    "\x00",
    "\x07",
    "\x9b31m",
    "a\nVALID: all is well",
    "\r",
    "\x7f",
    "\u2028",
    "\ud800",
)


def copied(base: Base, place: Path) -> Path:
    """The honest certificate, in a folder of its own."""
    shutil.copytree(base.folders[-1], place / "certificate")
    return place / "certificate"


def data_file(base: Base, file: Path) -> Path:
    """The samples of all tasks as the auditor has them."""
    arrays = {f"y_{t}": y for t, (_, y) in base.samples.items()}
    arrays |= {f"g_{t}": names for t, names in base.groups.items()}
    for t, (x, _) in base.samples.items():
        arrays[f"x_{t}"] = x
    np.savez(file, **arrays)
    return file


def signed(folder: Path, content: dict[str, Any]) -> None:
    """Write a text with the hashes of the files as they are, and its digest."""
    content["files"] = {name: file_digest(folder / name) for name in TENSORS if (folder / name).is_file()}
    content["digest"] = content_digest(content)
    (folder / TEXT).write_text(canonical_json(content))


# ---- the text


def bytes_of_the_text(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Texts that are no JSON, or other JSON."""
    draw = random.Random(0)
    for place in sorted(draw.sample(range(len(raw)), 20)):
        yield f"cut at {place}", raw[:place]
    for place in sorted(draw.sample(range(len(raw)), 20)):
        yield f"a byte 0xff at {place}", raw[:place] + b"\xff" + raw[place:]
    yield from {
        "empty": b"", "null": b"null", "a list": b"[]", "a number": b"1", "BOM": b"\xef\xbb\xbf" + raw, "zeros": bytes(10**6),
        "UTF-16": raw.decode().encode("utf-16"), "UTF-32": raw.decode().encode("utf-32"), "spaces": b" " * 40_000_000 + raw,
        "twice": raw + raw, "deep lists": b"[" * 100_000, "deep objects": b'{"a":' * 100_000, "deep and closed": b"[" * 990 + b"]" * 990,
        "long": b'{"format": "' + b"x" * 40_000_000 + b'"}', "many keys": b"{" + b",".join(b'"%d":0' % i for i in range(10**6)) + b"}",
        "random": random.Random(1).randbytes(10**5), "a long key": raw.replace(b'"method"', b'"' + b"k" * 10**6 + b'"', 1),
        "html": b"<script>alert(1)</script>", "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.", "not ours": b'{"format": "x", "version": 2}',
        "later": raw.replace(b'"version": %d' % VERSION, b'"version": %d' % (VERSION + 1)), "version true": b'{"format":"cop2l-certificate","version":5.0}',
    }.items()  # fmt: skip


def written_into(text: str, path: tuple[Any, ...], written: str) -> bytes:
    """The text with something written in the place of a value, whatever it is."""
    content = json.loads(text)
    at(content, path[:-1])[path[-1]] = "THE PLACE"
    return json.dumps(content).replace('"THE PLACE"', written).encode("utf-8", "surrogatepass")


PLACES: tuple[tuple[Any, ...], ...] = (
    ("version",), ("method",), ("made_by",), ("options", "delta"), ("options", "kind"), ("options", "seed"), ("options", "claim"),
    ("options", "memory"), ("scenario",), ("classes",), ("model", "name"), ("model",), ("data",), ("machine",), ("threads",), ("earlier",),
    ("not_valid",), ("commitment",), ("records", 0, "rows"), ("records", 0, "head"), ("records", 0, "errors"), ("statements", 0, "value"),
    ("statements", 0, "kind"), ("files",), ("digest",),
)  # fmt: skip
WRITTEN = {
    "NaN": "NaN", "Infinity": "-Infinity", "1e999": "1e999", "6000 digits": "9" * 6000, "4000 digits": "9" * 4000,
    "deep": "[" * 400 + "]" * 400, "10 MB": '"' + "y" * 10**7 + '"', "a key twice": '{"a": 1, "a": 2}',
}  # fmt: skip


# ---- numbers that ask for much


def asking_for_much(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Texts of the right form, rightly signed, whose numbers are enormous."""
    first = content["records"][0]

    def changed(name: str, change: Callable[[dict[str, Any]], None]) -> tuple[str, dict[str, Any]]:
        mine = deepcopy(content)
        change(mine)
        return name, mine

    for rows in (10**6, 9 * 10**9, 2**53):
        yield changed(
            f"{rows} rows",
            lambda c, n=rows: [r.update(rows=n, n=n, errors=n // 2) for r in c["records"]],
        )
        yield changed(
            f"{rows} picked",
            lambda c, n=rows: [r.update(rows=n, n=n, picked=n // 2) for r in c["records"]],
        )
        counts = {"compression": rows // 3, "evicted": rows // 3}
        yield changed(
            f"{rows} compressed",
            lambda c, n=rows, m=counts: [r.update(rows=n, n=n, **m) for r in c["records"]],
        )
    for name in ("stopped", "iterations", "rows", "n", "evicted", "errors_not_picked", "errors"):
        for value in (10**9, 2**53, 2**53 + 1, 10**30, -1):
            yield changed(f"{name} {value}", lambda c, k=name, v=value: c["records"][0].update({k: v}))
    options = {
        "memory": (0, 10**9, 10**10), "k": (0, 10**9, -1), "epochs": (10**6, 10**15), "batch": (0, 2**16, 10**9),
        "max_iterations": (10**9, 10**18), "tasks": (10**6, 10**30), "seed": (2**63, -(2**64)), "lr": (1e12, 1e-300, 1e300), "omega": (1e12, 1e300),
        "delta": (0.999999, 1e-300, 0.0, 1.0), "gamma": (1e-12, 1e12),
    }  # fmt: skip
    for name, values in options.items():
        for value in values:
            yield changed(f"options.{name} {value}", lambda c, k=name, v=value: c["options"].update({k: v}))
    for classes in (10**6, 10**9, 2**53):
        for scenario in ("task-incremental", "class-incremental"):
            yield changed(
                f"{classes} classes, {scenario}",
                lambda c, n=classes, s=scenario: c.update(classes=n, scenario=s),
            )
    for threads in (512, 513, 10**30, 0):
        yield changed(f"{threads} threads", lambda c, n=threads: c.update(threads=n))
    for key, value in (
        ("hidden", 10**7),
        ("inputs", [10**9]),
        ("inputs", [10**5, 10**5]),
        ("inputs", []),
        ("classes", 10**9),
        ("classes", 0),
    ):
        for name in ("linear", "mlp", "cnn", "multi-head"):
            yield changed(
                f"{name} {key} {value}",
                lambda c, k=key, v=value, n=name: c["model"].update({"name": n, k: v}),
            )
    for tasks in (1000, 20_000):
        statement = content["statements"][0]
        yield changed(f"{tasks} tasks", lambda c, n=tasks, s=statement: c.update(
            records=[{**first, "task": t} for t in range(1, n + 1)], statements=[{**s, "task": t} for t in range(1, n + 1)],
            options={**c["options"], "tasks": None}))  # fmt: skip
    yield changed(
        "a head of a million",
        lambda c: (c.update(classes=10**6), c["records"][0].update(head=list(range(10**6)))),
    )
    for classes in (10**4, 2 * 10**5, 2**18):
        yield changed(
            f"{classes} classes added", lambda c, n=classes: c["records"][-1].update(head=list(range(n)))
        )
    yield changed("a million machines", lambda c: c.update(earlier=["m"] * 10**6))
    yield changed("a million reasons", lambda c: c.update(not_valid=["Because."] * 10**6))
    yield changed("a wide recipe", lambda c: c.update(data={str(i): "x" * 900 for i in range(20_000)}))


# ---- the tensors


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor_files(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Files that are no tensors, or other tensors."""
    size = struct.unpack("<Q", raw[:8])[0]
    header, data, draw = json.loads(raw[8 : 8 + size]), raw[8 + size :], random.Random(2)
    name = next(key for key in header if key != "__metadata__")
    entry = header[name]

    def with_one(**changes: Any) -> bytes:
        return safetensors({**header, name: {**entry, **changes}}, data)

    for place in sorted(draw.sample(range(len(raw)), 8)):
        yield f"cut at {place}", raw[:place]
    yield from {
        "empty": b"", "eight bytes": bytes(8), "zeros": bytes(10**5), "header length 2**63": safetensors(header, data, 2**63),
        "header length 2**64 - 1": safetensors(header, data, 2**64 - 1), "header length 99 MB": safetensors(header, data, 99_000_000),
        "header length 0": safetensors(header, data, 0), "90 MB of header": safetensors(b" " * 90_000_000 + b"{}"),
        "deep header": safetensors(b"[" * 100_000), "header is a list": safetensors([]), "no tensors": safetensors({}),
        "dtype unknown": with_one(dtype="X7"), "dtype F64": with_one(dtype="F64"), "dtype null": with_one(dtype=None),
        "negative offsets": with_one(data_offsets=[-8, 0]), "offsets beyond": with_one(data_offsets=[0, 10**15]),
        "offsets reversed": with_one(data_offsets=[len(data), 0]), "offsets overlap": safetensors({**header, "again": entry}, data),
        "offsets 2**64": with_one(data_offsets=[0, 2**64]), "a hole": safetensors(header, data + bytes(64)),
        "shape overflows": with_one(shape=[2**40, 2**40]), "shape of nothing": with_one(shape=[0, 2**62]), "shape negative": with_one(shape=[-1]),
        "shape deep": with_one(shape=[1] * 10_000), "shape of text": with_one(shape="x"), "escape in a name": safetensors({**header, "\x1b[2J": entry}, data),
        "metadata": safetensors({**header, "__metadata__": {"bound": "0.01 %"}}, data), "metadata no text": safetensors({**header, "__metadata__": 1}, data),
        "a name twice": safetensors(json.dumps(header).encode()[:-1] + b"," + json.dumps({name: entry}).encode()[1:], data),
        "a long name": safetensors({**header, "n" * 10**6: entry}, data), "100 000 names": safetensors({str(i): entry for i in range(100_000)}, data),
        "JSON with NaN": safetensors(b'{"a": NaN}'), "not UTF-8": safetensors(b'{"\xff": 1}'), "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    }.items()  # fmt: skip


SAME_TENSORS = ("metadata", "a name twice", "offsets reversed")
"""These may hold the same tensors: an entry that is written twice is one, and of nothing the offsets are all the same."""


# ---- what is no file


def sparse(path: Path, size: int) -> None:
    path.unlink()
    with path.open("wb") as file:
        file.truncate(size)


def bound_socket(path: Path) -> None:
    path.unlink()
    folder_before = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(folder_before)


def replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def moved_and_linked(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


NO_FILES: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink, "a folder": replaced(Path.mkdir), "a FIFO": replaced(os.mkfifo), "a socket": bound_socket,
    "a link to nothing": replaced(lambda path: path.symlink_to("nowhere")), "a link to itself": replaced(lambda path: path.symlink_to(path.name)),
    "a link to /dev/zero": replaced(lambda path: path.symlink_to("/dev/zero")), "a link to /dev/random": replaced(lambda path: path.symlink_to("/dev/random")),
    "a link to /dev/tty": replaced(lambda path: path.symlink_to("/dev/tty")), "a link to /proc/self/mem": replaced(lambda path: path.symlink_to("/proc/self/mem")),
    "a link to /proc/kmsg": replaced(lambda path: path.symlink_to("/proc/kmsg")), "a link to a folder": replaced(lambda path: path.symlink_to("/")),
    "sparse, 20 GB": lambda path: sparse(path, 20 * 10**9), "sparse, 1 TB": lambda path: sparse(path, 10**12),
    "nobody may read it": lambda path: path.chmod(0), "moved, and a link in its place": moved_and_linked,
}  # fmt: skip


# ---- all of them


def hostile_files(base: Base, data: Path) -> list[Case]:
    """Every hostile certificate made from one honest one."""
    arguments = ("--data", str(data), *LIMIT)
    raw = (base.folders[-1] / TEXT).read_bytes()
    content = Certificate.read(base.folders[-1]).content
    cases = []

    def text(kind: str, name: str, written: bytes, harmless: bool = False) -> None:
        def lay(place: Path) -> Path:
            folder = copied(base, place)
            (folder / TEXT).write_bytes(written)
            return folder

        cases.append(Case(kind, name, lay, arguments, harmless))

    for name, written in bytes_of_the_text(raw):
        text("the bytes of the text", name, written)
    for path in PLACES:
        for name, something in WRITTEN.items():
            text("a value of the text", f"{name} at {path}", written_into(raw.decode(), path, something))
    for path in [
        p for p in leaves(content) if isinstance(at(content, p), str) and p[0] not in ("assumptions", "files")
    ]:
        for letters in ESCAPES:
            mine = deepcopy(content)
            at(mine, path[:-1])[path[-1]] = letters
            mine["digest"] = content_digest(mine) if path != ("digest",) else letters
            text(
                "letters that steer a terminal",
                f"{letters!r} at {path}",
                json.dumps(mine).encode(),
                harmless=path == ("made_by",),
            )
    for letters in ESCAPES:
        mine = {**content, "data": {letters: 1}, "settings": None}
        text(
            "letters that steer a terminal",
            f"{letters!r} as a key",
            json.dumps({**mine, "digest": content_digest(mine)}).encode(),
        )
        mine = {**content, letters: 1}
        text(
            "letters that steer a terminal",
            f"{letters!r} as a field",
            json.dumps({**mine, "digest": content_digest(mine)}).encode(),
        )

    def asked(name: str, mine: dict[str, Any]) -> None:
        def lay(place: Path) -> Path:
            folder = copied(base, place)
            signed(folder, mine)
            return folder

        # what was not reached may be any number: then the certificate is another honest one
        harmless = name.startswith("options.") or name.endswith((" threads", " recipe"))
        cases.append(Case("numbers that ask for much", name, lay, arguments, harmless))

    for name, mine in asking_for_much(content):
        asked(name, mine)

    def tensors(file: str, name: str, written: bytes, sign: bool) -> None:
        def lay(place: Path) -> Path:
            folder = copied(base, place)
            (folder / file).write_bytes(written)
            if sign:
                signed(folder, deepcopy(content))
            return folder

        cases.append(
            Case(
                "tensors",
                f"{name} in {file}{', signed' * sign}",
                lay,
                arguments,
                sign and name in SAME_TENSORS,
            )
        )

    for file in TENSORS:
        for name, written in tensor_files((base.folders[-1] / file).read_bytes()):
            tensors(file, name, written, True)
            tensors(file, name, written, False)

    def no_file(file: str, name: str, make: Callable[[Path], Any]) -> None:
        def lay(place: Path) -> Path:
            folder = copied(base, place)
            make(folder / file)
            return folder

        same = name.startswith(("moved", "nobody"))  # who is root may read what nobody may
        cases.append(Case("what is no plain file", f"{name}: {file}", lay, arguments, same))

    for file in (TEXT, *TENSORS):
        for name, make in NO_FILES.items():
            no_file(file, name, make)
    cases += strange_folders(base, arguments)
    return cases


def strange_folders(base: Base, arguments: tuple[str, ...]) -> list[Case]:
    """The folder itself, and more in it than belongs there."""

    def extra(name: str, written: bytes) -> Callable[[Path], Path]:
        def lay(place: Path) -> Path:
            folder = copied(base, place)
            (folder / name).write_bytes(written)
            return folder

        return lay

    def renamed_to(name: str) -> Callable[[Path], Path]:
        return lambda place: copied(base, place).rename(place / name)

    def instead(make: Callable[[Path], Any]) -> Callable[[Path], Path]:
        def lay(place: Path) -> Path:
            make(place / "certificate")
            return place / "certificate"

        return lay

    cases = [
        Case("the folder", f"called {name!r}", renamed_to(name), arguments, True)
        for name in ("\x1b[2Jx", "new\nline", "\u202ex", "\udcff", "-h", "x" * 250)
    ]
    names = (
        "more.safetensors",
        "theta.safetensors.old",
        ".hidden",
        "certificate.json.bak",
        "\x1b[2J",
        "theta.pt",
    )
    cases += [
        Case("the folder", f"with a file {name!r} more", extra(name, b"x"), arguments, True) for name in names
    ]
    for description, make in (("a FIFO", os.mkfifo), ("empty", Path.mkdir), ("a link to itself", lambda path: path.symlink_to(path.name)),
                       ("a link to /", lambda path: path.symlink_to("/")), ("a file", lambda path: path.write_text("{}")),
                       ("not there", lambda path: None), ("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"))):  # fmt: skip
        cases.append(Case("the folder", description, instead(make), arguments))
    return cases


ATTACKED = {0: 1, 3: 1, 10: 8, 12: 4}
"""The numbers of the honest certificates that hostile files are made from, and of how many of these files one is tried."""


def all_files(honest: Path, folder: Path) -> list[Case]:
    """The hostile files made from some honest certificates, which lie in a folder by their numbers."""
    cases = []
    for number, step in ATTACKED.items():
        base = planned()[number]
        base.folders = [honest / str(number) / "after-2"]
        cases += hostile_files(base, data_file(base, folder / f"{number}.npz"))[::step]
    return cases
