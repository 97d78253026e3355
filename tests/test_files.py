"""Files are read as they were written, or refused; a failed write changes nothing."""

import errno
import os
import pickle
import threading

import pytest
import torch

from cop2l import files
from cop2l.errors import UserError
from cop2l.files import DamagedError, Lock
from cop2l.kernel.exact import digest

LINES = [{"task": 1, "x": [0.1, None]}, {"task": 2, "name": "ä\udc80"}, {"task": 3, "nested": {"7": 1e-300}}]
TENSORS = {
    "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(7),
    "flags": torch.tensor([True, False]),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
}


def test_json_is_read_as_it_was_written(tmp_path):
    value = {"a": [1, 2.5, None, True], "ü": {"b": -0.0}, "tuple": (1,), 7: "a key that is a number", 10: 1}
    files.write_json(tmp_path / "a.json", value)
    read = files.read_json(tmp_path / "a.json")
    assert read == {"a": [1, 2.5, None, True], "ü": {"b": -0.0}, "tuple": [1], "7": value[7], "10": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"a": float("nan")})
    assert files.read_json(tmp_path / "a.json") == read


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1}', "without its checksum"),
        ('{"a": 1, "sha256": "00"}', "changed: its checksum does not fit"),
        ('{"a": Infinity', "not JSON"),
        ("3", "not an object"),
    ],
)
def test_other_json_is_refused(tmp_path, text, reason):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DamagedError) as refused:
        files.read_json(tmp_path / "a.json")
    assert str(refused.value) == f"{tmp_path / 'a.json'} is damaged ({reason}); restore it from a copy."
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)  # it crosses processes


def test_lines_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "a.jsonl"
    assert files.read_lines(path) == []
    for line in LINES:
        files.append_line(path, line)
    assert files.read_lines(path) == LINES
    content = path.read_bytes()
    files.write_lines(path, LINES)
    assert path.read_bytes() == content


def test_only_the_end_of_the_lines_may_be_unfinished(tmp_path):
    path = tmp_path / "a.jsonl"
    files.write_lines(path, LINES)
    content = path.read_bytes()
    for split in range(len(content)):
        path.write_bytes(content[:split])
        assert files.read_lines(path) == LINES[: content[:split].count(b"\n")]


def test_a_line_that_is_changed_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    files.write_lines(path, LINES)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    changed = third.replace(b'"task": 3', b'"task": 4')
    for lines, number in (
        ([first, b"\n", second, third], 2),
        ([first, second[:-9], b"\n", third], 2),
        ([first, second, changed], 3),
        ([first, second, b"years of work\n"], 3),
    ):
        path.write_bytes(b"".join(lines))
        with pytest.raises(DamagedError, match=f"line {number} is "):
            files.read_lines(path)


def test_tensors_are_read_as_they_were_written(tmp_path):
    shared = {**TENSORS, "same": TENSORS["half"], "part": TENSORS["half"][:1]}
    files.write_tensors(tmp_path / "a", shared, {"note": [1, "ü"]})
    tensors, note = files.read_tensors(tmp_path / "a")
    assert note == {"note": [1, "ü"]}
    assert digest(tensors) == digest(shared)
    assert tensors["transposed"].equal(TENSORS["transposed"])
    content = (tmp_path / "a").read_bytes()
    files.write_tensors(tmp_path / "a", tensors, note)
    assert (tmp_path / "a").read_bytes() == content


def test_every_bit_of_a_file_of_tensors_counts(tmp_path):
    files.write_tensors(tmp_path / "a", {"x": torch.arange(3.0)}, {"task": 1})
    content = (tmp_path / "a").read_bytes()
    harmless = 0
    for place in range(8 * len(content)):
        broken = bytearray(content)
        broken[place // 8] ^= 1 << place % 8
        (tmp_path / "a").write_bytes(broken)
        try:
            tensors, note = files.read_tensors(tmp_path / "a")
        except DamagedError:
            continue
        harmless += 1
        assert (tensors["x"].tolist(), note) == ([0.0, 1.0, 2.0], {"task": 1})
    assert harmless < 20  # spaces of the header


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    files.write_text(tmp_path / "a", "old")

    def fill(new):
        new.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserError, match=r"The disk of .* is full"):
        files.replace_file(tmp_path / "a", fill)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_replacement_of_a_folder_is_undone_or_complete(tmp_path):
    def filled(text):
        return lambda new: files.write_text(new / "file", text)

    folder = tmp_path / "folder"
    files.replace_folder(folder, filled("one"))
    files.replace_folder(folder, filled("two"))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    folder.rename(tmp_path / ".folder.old")
    filled("three")(tmp_path / ".folder.new")
    assert files.last_complete(folder) == tmp_path / ".folder.old"
    files.recover(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (folder / "file").read_text() == "two"


def test_certificates_are_ordered_by_number(tmp_path):
    for name in ("after-99", "after-100", "after-9", "after-100.old", "after-x", "after-", "after-101²"):
        files.write_text(tmp_path / "certificates" / name / "certificate.json", "{}")
    files.write_text(tmp_path / "certificates" / "after-200", "a file")
    found = files.numbered_folders(tmp_path / "certificates", "after-")
    assert [path.name for path in found] == ["after-9", "after-99", "after-100"]


def test_a_lock_names_its_holder_and_is_released(tmp_path):
    for _ in range(2):
        with Lock(tmp_path / "new" / "lock", "busy"), pytest.raises(UserError) as refused:
            Lock(tmp_path / "new" / "lock", "Held by {holder} in {braces}.").__enter__()
        assert str(refused.value).startswith(f"Held by process {os.getpid()} on ")
        assert str(refused.value).endswith(" in {braces}.")


def test_a_lock_is_released_by_another_thread(tmp_path):
    lock = Lock(tmp_path / "lock", "busy").__enter__()
    thread = threading.Thread(target=lock.__exit__)
    thread.start()
    thread.join()
    with Lock(tmp_path / "lock", "busy"):
        pass


UNIX_IMPORTS = ("fcntl", "resource", "pwd", "grp", "termios")


def test_no_module_needs_unix_to_be_imported():
    import ast
    from pathlib import Path

    for path in Path(files.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not set(names) & set(UNIX_IMPORTS), path
