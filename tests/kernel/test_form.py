"""Reading a certificate: whatever is wrong with it is refused in one sentence, and nothing else is ever raised."""

import copy
import itertools
import json
import os
import re

import folders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cop2l.kernel.building import described_shapes, stored_shapes, stored_tensors
from cop2l.kernel.form import FILES, TEXT_FILE, Unreadable, read_content
from cop2l.kernel.options import UserError, grid_points

KINDS = ("preference", "kl", "buffer", "holdout")


def refused(folder, word: str | None = None, kind=UserError) -> None:
    with pytest.raises(kind) as caught:
        read_content(folder)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert word is None or word in sentence


def paths(value, prefix=()):
    """Every place in a JSON value."""
    yield prefix
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from paths(inner, (*prefix, key))


def replaced(certificate, path, value):
    """The content with another value at a path."""
    if not path:
        return value
    changed_copy = copy.deepcopy(certificate)
    place = changed_copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed_copy


def at(certificate, path):
    for key in path:
        certificate = certificate[key]
    return certificate


FREE = {"settings", "model", "data", "files"}
"""Objects of plain values, which may hold what the issuer likes (files: checked by name and hash)."""
PLACES = [path for path in paths(folders.content()) if path and path[0] not in FREE]
OF_PARTS = [
    path
    for path in paths(folders.everything())
    if path[:2] in [("options", "claim"), ("options", "groups")]
    or (path[:3] == ("records", 0, "parts") and (len(path) == 3 or path[3] in (0, 2, 4)))
    or (path[0:1] == ("statements",) and len(path) > 1 and path[1] in (2, 3, 5, 9))
]
"""A class, a group, what was lost, and a statement of each family."""


@pytest.mark.parametrize("made", [folders.content, folders.everything])
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_certificate_is_read(tmp_path, kind, made):
    written = made(kind=kind)
    content = read_content(folders.write(tmp_path / "good", written))
    assert content["options"].kind == kind
    assert content["folder"] == tmp_path / "good"
    assert {one["value"] for one in content["statements"]} == {0.9}
    plain = {
        key: value for key, value in content.items() if key not in ("options", "folder", "files", "digest")
    }
    assert plain == {key: value for key, value in written.items() if key != "options"}


EMPTY = {
    ("options",): [{}],
    ("earlier",): [[]],
    ("not_valid",): [[]],
    ("records", 0, "parts"): [[]],
    ("records", 1, "parts"): [[]],
}
"""What may be empty: all options have defaults, and there may be no other machines, no reasons, and no parts."""


@pytest.mark.parametrize("path", OF_PARTS, ids=lambda path: "/".join(map(str, path)))
def test_every_place_of_a_part_has_a_type(tmp_path, path):
    every_place_has_a_type(tmp_path, path, folders.everything())


@pytest.mark.parametrize("path", PLACES, ids=lambda path: "/".join(map(str, path)))
def test_every_place_has_a_type(tmp_path, path):
    every_place_has_a_type(tmp_path, path, folders.content())


def every_place_has_a_type(tmp_path, path, certificate):
    """Each value in the place of each: what has another type is refused, and so are NaN, infinity and truth values."""
    good = at(certificate, path)
    values = [
        {},
        {"a": 1},
        [],
        [[]],
        True,
        False,
        -1,
        0.5,
        1e300,
        float("nan"),
        float("inf"),
        "",
        "x" * 2000,
        "a\nb",
        "\x1b[2J",
    ]
    values += ["\ud800", "\u202e", 2**53 + 1, 10**30, float(good) if type(good) is int else 2**63]
    accepted = []
    for value in values:
        if type(value) is type(good) and not isinstance(good, dict | list):
            continue
        try:
            read_content(folders.write(tmp_path / "one", replaced(certificate, path, value)))
        except UserError:
            continue
        accepted.append(value)
    assert accepted == (EMPTY.get(path, []) if certificate == folders.content() else [])


RANGES = {
    ("threads",): (1, 512), ("classes",): (1, 2**53), ("records", 0, "rows"): (1, 2**53), ("records", 0, "stopped"): (0, 2**53),
    ("statements", 0, "task"): (1, 2**53), ("options", "seed"): (-(2**63), 2**63 - 1), ("options", "tasks"): (1, 10**6),
}  # fmt: skip


@pytest.mark.parametrize(("path", "limits"), RANGES.items(), ids=str)
def test_numbers_outside_their_range_are_refused(tmp_path, path, limits):
    for value in (limits[0] - 1, limits[1] + 1, -(10**25), 10**4000):
        refused(folders.write(tmp_path / "one", replaced(folders.content(), path, value)), str(path[-1]))


@pytest.mark.parametrize("value", [-0.1, 1.0000000001, 2, 1, 0, None, "0.5", True])
def test_a_bound_is_a_float_from_zero_to_one(tmp_path, value):
    path = ("statements", 1, "value")
    refused(folders.write(tmp_path / "one", replaced(folders.content(), path, value)), "statements[1].value")
    for good in (0.0, 1.0, 5e-324):
        read_content(folders.write(tmp_path / "one", replaced(folders.content(), path, good)))


@pytest.mark.parametrize(
    "path",
    [path for path in paths(folders.content()) if isinstance(at(folders.content(), path), dict)],
    ids=str,
)
def test_unknown_and_missing_fields_are_refused(tmp_path, path):
    certificate = folders.content()
    if path and path[0] in FREE:
        return
    more = replaced(certificate, path, at(certificate, path) | {"unknown": 1})
    refused(folders.write(tmp_path / "more", more))
    for key in at(certificate, path):
        if path != ("options",):  # an option that is absent has its default
            less = replaced(certificate, path, {k: v for k, v in at(certificate, path).items() if k != key})
            refused(folders.write(tmp_path / "less", less))


@pytest.mark.parametrize("key", ["delta", "value", "classes", "lr", "task"])
def test_a_field_that_is_named_twice_is_refused(tmp_path, key):
    folder = folders.write(tmp_path / "one", folders.content())
    text = (folder / TEXT_FILE).read_text()
    twice = re.sub(rf'("{key}": [^,}}]+)', r"\1, \1", text, count=1)
    assert twice != text
    (folder / TEXT_FILE).write_text(twice)
    refused(folder, "twice")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(tmp_path, word):
    for old in ("0.9", "0.05", "90", "0.1"):
        text = json.dumps(folders.content() | {"files": {}, "digest": folders.SHA}).replace(old, word, 1)
        assert word in text
        refused(folders.write(tmp_path / "one", folders.content(), text=text))


@pytest.mark.parametrize(
    "new", [{"lr": 1}, {"omega": 15}, {"grid": 1, "max_iterations": 8}, {"claim": ("tasks", "tasks")}]
)
def test_one_and_one_point_zero_are_not_the_same(tmp_path, new):
    """1 where 1.0 is meant would be hashed differently; what has the value of a default is no exception."""
    refused(folders.write(tmp_path / "one", folders.content(**new)))


@pytest.mark.parametrize(
    "new",
    [
        {"kind": "preference", "buffer": "uniform"}, {"grid": True}, {"claim": []}, {"claim": ["all"]},
        {"claim": [["tasks"]]}, {"claim": "tasks"}, {"buffer": "priority"}, {"buffer": ["threshold"]}, {"kind": {}},
        {"delta": 0.0}, {"delta": 0.6}, {"k": 0}, {"memory": 1}, {"stop": None}, {"max_iterations": -1},
        {"claim": ["tasks", "groups"]}, {"groups": ["a"]}, {"claim": ["groups"], "groups": ["a", "a"]}, {"claim": ["average"]},
        {"claim": ["tasks", "classes"], "shares": [1]}, {"shares": [0]}, {"shares": [1.0]}, {"shares": [True]}, {"shares": 1},
        {"claim": ["tasks", "classes"], "shares": [1, -1]}, {"claim": ["groups"], "groups": [1]},
        {"claim": ["groups"], "groups": ["a\nb"]}, {"claim": ["groups"], "groups": ["x" * 99]},
        {"claim": ["groups"], "groups": [str(i) for i in range(1001)]},
    ],
    ids=lambda new: str(new)[:60],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(tmp_path, new):
    given = folders.content()
    given["options"] |= new
    refused(folders.write(tmp_path / "one", given))


IMPOSSIBLE = [
    {"n": 91}, {"rows": 91}, {"evicted": 1}, {"compression": 87}, {"errors": 83},
    {"errors_not_picked": 83}, {"picked": 87}, {"selected": 91}, {"compressed": 51}, {"selected": None}, {"compressed": None},
    {"errors": None}, {"errors_not_picked": None}, {"task": 2}, {"head": [1, 0]}, {"head": [0, 0]}, {"head": [0, 6]},
    {"head": []},
]  # fmt: skip


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=str)
def test_counts_that_cannot_be_are_refused(tmp_path, change):
    given = folders.content()
    given["records"][0] |= change
    refused(folders.write(tmp_path / "one", given))


IMPOSSIBLE_HALF = [
    {"n": 44}, {"n": 46}, {"evicted": 1}, {"compression": 44}, {"errors": 42}, {"errors_not_picked": 42},
    {"picked": 44}, {"selected": 46}, {"compressed": 26}, {"selected": None}, {"compressed": None},
    {"errors": None}, {"errors_not_picked": None}, {"iterations": 2}, {"subject": "c"}, {"subject": 2}, {"family": "tasks"},
    {"family": "forgetting"}, {"family": "average"},
]  # fmt: skip
IMPOSSIBLE_LOST = [change for change in IMPOSSIBLE if not {"rows", "task", "head"} & set(change)]


@pytest.mark.parametrize(
    ("number", "change"),
    [*((number, change) for number in (0, 2) for change in IMPOSSIBLE_HALF), *((4, change) for change in IMPOSSIBLE_LOST)],
    ids=str,
)  # fmt: skip
def test_counts_of_a_part_that_cannot_be_are_refused(tmp_path, number, change):
    """Of a class and of a group, which have half of the examples, and of what was lost."""
    certificate = folders.everything()
    certificate["records"][0]["parts"][number] |= change
    refused(
        folders.write(tmp_path / "one", certificate),
        "records[0]" if change.get("family") in ("tasks", "average") else "task 1",
    )


def test_parts_that_were_not_promised_are_refused(tmp_path):
    def changed(change, made=folders.everything):
        certificate = made()
        parts = certificate["records"][0]["parts"]
        change(parts)
        refused(folders.write(tmp_path / "one", certificate), "record of task 1 is impossible")

    extra = folders.everything()["records"][0]["parts"]
    for number in range(len(extra)):
        changed(lambda parts, number=number: parts.pop(number))
        changed(lambda parts, number=number: parts.append(parts[number]))
        changed(lambda parts, number=number: parts.insert(number, parts[number]))
        changed(lambda parts, number=number: parts.append(extra[number]), folders.content)
    changed(lambda parts: parts.reverse())
    changed(lambda parts: parts.append({**parts[0], "n": 0, "errors": 0, "subject": 3}))  # a class of no head
    last = folders.everything()  # nothing can be lost of the last task
    last["records"][1]["parts"] += extra[-2:]
    refused(folders.write(tmp_path / "one", last), "record of task 2 is impossible")


def test_every_statement_that_was_promised_is_made_once_and_in_order(tmp_path):
    good = folders.everything()["statements"]
    for number in range(len(good)):
        for statements in (
            good[:number] + good[number + 1 :],
            [*good[: number + 1], *good[number:]],
            [*good[:number], *good[number + 1 :], good[number]] if number + 1 < len(good) else good[::-1],
            [*good[:number], good[number] | {"kind": "kl"}, *good[number + 1 :]],
            [*good[:number], good[number] | {"subject": "net"}, *good[number + 1 :]],
        ):
            refused(
                folders.write(tmp_path / "one", folders.everything() | {"statements": statements}),
                "promised statements",
            )


def test_counts_of_the_uniform_buffer(tmp_path):
    uniform = folders.content(kind="kl", buffer="uniform")
    for one in uniform["records"]:
        one |= {"evicted": 5, "selected": None, "compressed": None}
    read_content(folders.write(tmp_path / "uniform", uniform))
    uniform["records"][0]["evicted"] = 90
    refused(folders.write(tmp_path / "uniform", uniform))


def test_the_kind_of_a_task_without_data_is_buffer(tmp_path):
    without_data = folders.content()
    without_data["records"][0] |= {"errors": None, "errors_not_picked": None}
    refused(folders.write(tmp_path / "one", without_data))
    without_data["statements"][0]["kind"] = "buffer"
    read_content(folders.write(tmp_path / "one", without_data))


def test_a_claim_for_a_fixed_number_of_tasks_has_that_number(tmp_path):
    refused(
        folders.write(tmp_path / "one", folders.content(tasks=2) | {"options": {"tasks": 3, "delta": 0.05}}),
        "3 tasks",
    )
    read_content(folders.write(tmp_path / "any", folders.content(tasks=2) | {"options": {"tasks": None}}))


def test_texts_that_are_too_long_or_not_printable_are_refused(tmp_path):
    for name in ("made_by", "method", "machine"):
        for text in ("x" * 1001, "a\x00b", "\x1b]0;title\x07", "line\nline", "\u2028", "\ud83d", "\u200b"):
            refused(folders.write(tmp_path / "one", folders.content() | {name: text}), name)
        if name != "method":
            read_content(folders.write(tmp_path / "one", folders.content() | {name: "x" * 1000}))
    for name in ("settings", "model", "data"):
        deep: object = 1
        for _ in range(7):
            deep = [deep]
        for value in (
            {"a": "x" * 1001},
            {"a\n": 1},
            {"a": deep},
            {"a": 2**53 + 1},
            {"a": 1e300},
            [1],
            "text",
            3,
        ):
            refused(folders.write(tmp_path / "one", folders.content() | {name: value}), name)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_json_is_refused(tmp_path, opening):
    """Below the depth that the parser takes, at it, and far beyond it."""
    closing = "]" if opening == "[" else "}"
    for depth in (10, 500, *range(900, 1000, 7), 5000, 200_000):
        nested = opening * depth + "1" + closing * depth
        for place in (
            '"data": {"lr": 0.1}',
            '"delta": 0.05',
            '"kind": "preference"',
            '"value": 0.9',
            '"head": [0, 1]',
        ):
            text = json.dumps(folders.content())
            assert place in text
            refused(
                folders.write(
                    tmp_path / "deep",
                    folders.content(),
                    text=text.replace(place, f"{place.split(':')[0]}: {nested}", 1),
                )
            )
    refused(folders.write(tmp_path / "deep", folders.content(), text=opening * 10**6), kind=Unreadable)


@pytest.mark.parametrize("digits", [20, 400, 4300, 6000])
def test_long_integers_are_refused(tmp_path, digits):
    for place in ('"rows": 90', '"seed": 3', '"delta": 0.05', '"value": 0.9', '"lr": 0.1', '"version": 5'):
        text = json.dumps(folders.content())
        assert place in text
        long = text.replace(place, f"{place.split(':')[0]}: {'9' * digits}", 1)
        refused(folders.write(tmp_path / "long", folders.content(), text=long))


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"\x00" * 64, b"{}", b"1", b"nan", b'{"format": 1}'],
)
def test_what_is_no_certificate_cannot_be_read(tmp_path, raw):
    folder = folders.write(tmp_path / "one", folders.content())
    (folder / TEXT_FILE).write_bytes(raw)
    refused(folder, kind=Unreadable)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 4},
        {"version": 6},
        {"version": 4.5},
        {"version": [5]},
        {"format": "other"},
        {"format": None},
    ],
)
def test_another_format_cannot_be_read(tmp_path, change):
    refused(
        folders.write(tmp_path / "one", folders.content() | change),
        "not a cop2l certificate of format 5",
        kind=Unreadable,
    )


def test_a_changed_text_does_not_match_its_digest(tmp_path):
    folder = folders.write(tmp_path / "one", folders.content())
    text = (folder / TEXT_FILE).read_text()
    (folder / TEXT_FILE).write_text(text.replace('"value": 0.9', '"value": 0.8', 1))
    refused(folder, "digest")
    (folder / TEXT_FILE).write_text(
        json.dumps(json.loads(text), indent=2)
    )  # the same content, written otherwise
    read_content(folder)


@pytest.mark.parametrize("name", FILES)
def test_changed_files_are_refused(tmp_path, name):
    folder = folders.write(tmp_path / "one", folders.content())
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    refused(folder, name)
    (folder / name).write_bytes(raw[:-4])
    refused(folder, name)
    (folder / name).unlink()
    refused(folder, name, Unreadable)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"sets.safetensors": folders.SHA},
        dict.fromkeys((*FILES, "../more"), folders.SHA),
        dict.fromkeys(FILES, 1),
        dict.fromkeys(FILES),
    ],
)
def test_other_files_than_the_documented_ones_are_refused(tmp_path, files):
    folders.write(tmp_path / "one", folders.content())
    refused(folders.write(tmp_path / "one", folders.content(), files=files))


def fifo(path):
    os.mkfifo(path)


def directory(path):
    path.mkdir()


def link_to_nowhere(path):
    path.symlink_to(path.parent / "nowhere")


def link_to_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", [TEXT_FILE, *FILES])
@pytest.mark.parametrize("make", [fifo, directory, link_to_nowhere, link_to_device])
def test_what_is_no_regular_file_cannot_be_read(tmp_path, name, make):
    folder = folders.write(tmp_path / "one", folders.content())
    (folder / name).unlink()
    make(folder / name)
    refused(folder, name, Unreadable)


def test_a_folder_that_is_none(tmp_path):
    refused(tmp_path / "absent", kind=Unreadable)
    (tmp_path / "file").write_text("{}")
    refused(tmp_path / "file", kind=Unreadable)
    folder = folders.write(tmp_path / "one", folders.content())
    (tmp_path / "link").symlink_to(folder)
    read_content(tmp_path / "link")


def test_a_damaged_file_of_tensors_cannot_be_read(tmp_path):
    path = folders.write(tmp_path / "one", folders.content()) / "theta.safetensors"
    assert stored_tensors(path)["weight"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (stored_shapes(path, ""), stored_shapes(path, "we")) == ({"weight": (6,)}, {"ight": (6,)})
    content = path.read_bytes()
    for size in (0, 4, 8, 20, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(Unreadable):
            stored_tensors(path)
    path.write_bytes((2**60).to_bytes(8, "little") + content[8:])
    with pytest.raises(Unreadable):
        stored_shapes(path, "")


@given(st.integers(0, 10**9))
@settings(derandomize=True, deadline=None, database=None)
def test_a_grid_is_a_function_of_its_last_number(last):
    points = grid_points(last)
    assert points[0] == 0
    assert points[-1] == last
    assert list(points) == sorted(set(points))
    assert len(points) <= 2 * last.bit_length() + 2
    assert all(b <= 2 * a for a, b in itertools.pairwise(points[1:]))


def test_the_shapes_of_a_described_model_take_neither_time_nor_memory():
    widths = {"inputs": [10**5, 10**5], "classes": 2, "hidden": 16}
    description = {"name": "mlp", "seed": 0, "dropout": 0.5, **widths}
    assert described_shapes(description)["hidden.weight"] == (16, 10**10)
    for name in ("inputs", "classes", "hidden", "dropout"):
        with pytest.raises(UserError, match=r"A model needs|The option") as caught:
            described_shapes(description | {name: [2**53] * 10**4})
        assert len(str(caught.value)) < 300
