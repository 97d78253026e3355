"""A user's own data: arrays, .npz, .npy, Parquet, CSV, folders of pictures, dataset folders."""

import gzip

import numpy as np
import pytest
import torch
from PIL import Image
from small_data_sets import picture

from cop2l import streams
from cop2l.errors import Advice, UserError
from cop2l.streams.encoding import hash_texts
from cop2l.streams.files import examples
from cop2l.streams.preparing import Preparing

pa = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 4


def same(stream, x=X, y=Y):
    """The stream holds these training examples in one task: nobody asked for more."""
    assert len(stream) == 1
    label_of_row = {
        tuple(row): int(label)
        for task in stream
        for row, label in zip(np.asarray(task.x), task.y, strict=True)
    }
    expected = {tuple(row): int(label) for row, label in zip(x, y, strict=True)}
    assert label_of_row == expected


def test_arrays_tensors_and_lists():
    same(streams.from_arrays(X, Y, X[:8], Y[:8]))
    same(
        streams.from_arrays(
            torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(X[:8]), torch.from_numpy(Y[:8])
        )
    )
    same(streams.from_arrays(X.tolist(), Y.tolist(), X[:8].tolist(), Y[:8].tolist()))
    same(streams.from_arrays(X.astype(np.float64), Y.astype(float), X[:8].astype(np.float64), Y[:8]))


def test_test_part_is_split_off_by_a_seed():
    stream = streams.from_arrays(X, Y, test_share=0.25)
    assert sum(len(y) for _, y, _ in stream) == 30
    assert sum(len(y) for _, y, _ in stream.test) == 10
    rows = np.concatenate([task.x for task in (*stream, *stream.test)])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, X)), "every example is in exactly one part"
    again, other = (streams.from_arrays(X, Y, test_share=0.25, seed=s) for s in (0, 1))
    assert again.description == stream.description
    assert other.description["fingerprint"] != stream.description["fingerprint"]
    assert stream.description["test_share"] == 0.25


def test_label_names_and_lists_of_classes():
    labels = np.array(["ape", "bee", "cat", "dog"])[Y]
    stream = streams.from_arrays(X, labels, X[:8], labels[:8])
    assert stream.description["class_names"] == ["ape", "bee", "cat", "dog"]
    assert stream.description["label_set"] == "found in the data"
    declared = streams.from_arrays(
        X, labels, X[:8], labels[:8], classes=["dog", "cat", "bee", "ape"], tasks=2
    )
    assert declared.description["label_set"] == "given"
    assert (np.sort(declared[0].y) == np.repeat([0, 1], 10)).all()
    assert set(map(tuple, declared[0].x)) == {
        tuple(row) for row, label in zip(X, labels, strict=True) if label in ("dog", "cat")
    }
    same(streams.from_arrays(X, Y * 10 + 5, X[:8], Y[:8] * 10 + 5, classes=[5, 15, 25, 35]))


def test_pictures_of_bytes_are_scaled_channels_first():
    grey = np.arange(40 * 20, dtype=np.uint8).reshape(40, 4, 5)
    stream = streams.from_arrays(grey, Y, grey[:8], Y[:8], tasks=1)
    assert stream[0].x.shape == (40, 1, 4, 5)
    np.testing.assert_allclose(stream[0].x[:, 0], grey / 127.5 - 1, atol=1e-6)
    colour = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), np.uint8)
    stream = streams.from_arrays(colour, Y, colour[:8], Y[:8], tasks=1)
    np.testing.assert_allclose(stream[0].x, colour.transpose(0, 3, 1, 2) / 127.5 - 1, atol=1e-6)


def test_domains():
    site = np.array(["north", "south"])[np.arange(40) // 20]
    stream = streams.from_arrays(X, Y, domain=site)
    assert (stream.scenario, len(stream), stream.classes) == ("domain-incremental", 2, 4)
    assert sum(len(y) for _, y, _ in stream) == 32


def test_npz(tmp_path):
    np.savez(tmp_path / "mine.npz", x=X, y=Y, x_test=X[:8], y_test=Y[:8])
    stream = streams.load(tmp_path / "mine.npz")
    same(stream)
    assert stream.name == "mine"
    assert stream.description["source"].endswith("mine.npz")
    np.savez(tmp_path / "scaled.npz", x_train=(X * 10).astype(np.int8), y_train=Y, scale=np.float32(0.5))
    scaled = streams.load(str(tmp_path / "scaled.npz"), test_share=0.1)
    assert set(np.unique(scaled[0].x * 2)) <= set(np.arange(-128.0, 128.0))
    assert sum(len(y) for _, y, _ in scaled) == 36


def test_npy_folder_is_mapped(tmp_path):
    order = np.argsort(Y, kind="stable")
    for name, array in (("x", X[order]), ("y", Y[order]), ("x_test", X[:8]), ("y_test", Y[:8])):
        np.save(tmp_path / f"{name}.npy", array)
    stream = streams.load(tmp_path)
    same(stream)
    assert isinstance(stream[0].x, np.memmap)


def table(y=Y):
    return pa.table({"a": X[:, 0], "label": y, "b": X[:, 1], "c": X[:, 2]})


def test_one_text_is_one_column(tmp_path):
    wide = pa.table({"abc": X[:, 0], "a": X[:, 1], "label": Y})
    parquet.write_table(wide, tmp_path / "wide.parquet")
    alone, listed = (streams.load(tmp_path / "wide.parquet", columns=c) for c in ("abc", ["abc"]))
    assert alone.description == listed.description
    assert set(alone[0].x.ravel()) <= set(X[:, 0])


def test_parquet_and_csv(tmp_path):
    parquet.write_table(table(), tmp_path / "all.parquet")
    csv.write_csv(table(), tmp_path / "all.csv")
    first, second = (streams.load(tmp_path / f"all.{kind}") for kind in ("parquet", "csv"))
    assert first.classes == second.classes == 4
    np.testing.assert_array_equal(first[0].x, second[0].x)
    assert first.description["fingerprint"] == second.description["fingerprint"]
    renamed = table().rename_columns(["a", "kind", "b", "c"])
    parquet.write_table(renamed, tmp_path / "renamed.PARQUET")
    some = streams.load(tmp_path / "renamed.PARQUET", label="kind", columns=["c", "a"])
    assert some[0].x.shape[1] == 2


def reviews(y=Y):
    topics = ("cheap thin screw", "solid oak table", "sweet red apple", "fast quiet train")
    return [f"{topics[label]}, number {i}" for i, label in enumerate(y)]


def test_a_column_of_text_is_hashed_by_a_rule_that_no_sample_decides(tmp_path):
    data = pa.table({"review": reviews(), "label": Y})
    csv.write_csv(data, tmp_path / "reviews.csv")
    stream = streams.load(tmp_path / "reviews.csv", text="review", text_size=64)
    assert stream[0].x.shape[1] == 64
    np.testing.assert_allclose(np.linalg.norm(stream[0].x, axis=1), 1, atol=1e-6)
    alone = hash_texts(reviews()[:1], 64)  # a row depends on its own text alone
    assert any((row == alone[0]).all() for part in (stream, stream.test) for task in part for row in task.x)


def test_text_beside_numbers(tmp_path):
    data = table().append_column("review", pa.array(reviews()))
    parquet.write_table(data, tmp_path / "both.parquet")
    both = streams.load(tmp_path / "both.parquet", text=["review"], text_size=32)
    assert both[0].x.shape[1] == 3 + 32
    chosen = streams.load(tmp_path / "both.parquet", columns=["a"], text=["review"], text_size=32)
    np.testing.assert_array_equal(chosen[0].x, both[0].x[:, [0, *range(3, 35)]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "text="),
        ({"text": ["review", "label"]}, "its label 'label' for an input"),
        ({"text": "remark"}, "no column 'remark'"),
        ({"text": "review", "text_size": 0}, "whole number"),
    ],
)
def test_wrong_columns_of_text(tmp_path, options, message):
    csv.write_csv(pa.table({"review": reviews(), "label": Y}), tmp_path / "reviews.csv")
    with pytest.raises(UserError, match=message):
        streams.load(tmp_path / "reviews.csv", **options)


def test_train_and_test_tables_in_a_folder(tmp_path):
    (tmp_path / "data").mkdir()
    for part, rows in (
        ("train-00000-of-00002", slice(0, 25)),
        ("train-00001-of-00002", slice(25, 40)),
        ("test", slice(0, 8)),
    ):
        parquet.write_table(
            table().slice(rows.start, rows.stop - rows.start), tmp_path / "data" / f"{part}.parquet"
        )
    stream = streams.load(tmp_path)
    same(stream)
    assert sum(len(y) for _, y, _ in stream.test) == 8


def test_domain_column_and_names(tmp_path):
    data = table(np.array(["no", "yes"])[Y % 2]).append_column(
        "year", pa.array((np.arange(40) // 10 + 2000).tolist())
    )
    csv.write_csv(data, tmp_path / "years.csv")
    stream = streams.load(tmp_path / "years.csv", domain="year")
    assert (stream.scenario, len(stream), stream.description["class_names"]) == (
        "domain-incremental",
        4,
        ["no", "yes"],
    )
    assert stream[0].x.shape[1] == 3


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("parts", [("train", "val"), ("",)])
def test_picture_folder(tmp_path, mode, parts):
    for part in parts:
        for i in range(10):
            for name in ("ape", "bee"):
                picture(tmp_path / part / name / f"{i}.png", 6, 5, i, mode)
    stream = streams.load(tmp_path, tasks=2)
    assert stream.description["class_names"] == ["ape", "bee"]
    assert stream[0].x.shape[1:] == (3 if mode == "RGB" else 1, 5, 6)
    assert len(stream[0].y) == 10 if len(parts) == 2 else len(stream[0].y) + len(stream[1].y) == 16
    assert streams.load(tmp_path, size=8, tasks=1)[0].x.shape[2:] == (8, 8)


def test_grey_pictures_among_coloured_ones_and_hidden_files(tmp_path):
    for part, modes in (("train", "RGB RGB L"), ("val", "L RGB L")):
        for name in ("ape", "bee"):
            for i, mode in enumerate(modes.split()):
                picture(tmp_path / part / name / f"{i}.png", 6, 6, i, mode)
            (tmp_path / part / name / "._0.png").write_bytes(b"")  # of an archive made on a Mac
    stream = streams.load(tmp_path, tasks=1)
    assert stream[0].x.shape[1:] == stream.test[0].x.shape[1:] == (3, 6, 6)


def test_columns_may_be_called_by_numbers(tmp_path):
    rows = "".join(f"{i},{-i},{i % 2}\n" for i in range(20))
    (tmp_path / "numbers.csv").write_text(f"0,1,2\n{rows}")
    stream = streams.load(tmp_path / "numbers.csv", label=2, columns=[1], tasks=1)
    assert stream[0].x.shape[1:] == (1,)
    assert stream[0].x.max() <= 0


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array([1, 2, 5, 9])[Y], ["1", "2", "5", "9"]),
        (np.array([10**15, 7, 10, 9])[Y], ["7", "9", "10", str(10**15)]),
        (np.array(["01", "02", "10", "9"])[Y], ["01", "02", "9", "10"]),
        (np.array(["1.0", "2.0", "1e1", "0"])[Y], ["0", "1", "2", "10"]),
    ],
)
def test_labels_are_names_in_order(labels, names):
    stream = streams.from_arrays(X, labels, X[:8], labels[:8], tasks=1)
    assert stream.description["class_names"] == names
    assert [names[c] for c in stream[0].y[:4]] == [
        str(int(float(label))) if label[-2:] in (".0", "e1") else label for label in map(str, labels[:4])
    ]


def test_columns_of_pictures_and_of_arrays(tmp_path):
    """As the `datasets` library writes them to Parquet."""
    cells = []
    for i in range(40):
        picture(tmp_path / "scratch.png", 6, 6, i)
        cells.append({"bytes": (tmp_path / "scratch.png").read_bytes(), "path": None})
    image = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    data = pa.table({"image": image, "label": Y})
    for split, part in (("train", data), ("validation", data.slice(0, 8))):
        parquet.write_table(part, tmp_path / f"{split}-00000.parquet")
    stream = streams.load(tmp_path)
    assert [[len(y) for _, y, _ in part] for part in (stream, stream.test)] == [[40], [8]]
    expected = np.asarray(Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)))
    np.testing.assert_allclose(stream[0].x[0], expected.transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)
    nested = pa.table({"values": [[row.tolist(), row.tolist()] for row in X], "label": Y})
    parquet.write_table(nested, tmp_path / "nested.parquet")
    assert streams.load(tmp_path / "nested.parquet")[0].x.shape[1:] == (2, 3)
    ragged = pa.table({"values": [[1.0, 2.0], [3.0]] * 20, "label": Y})
    parquet.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(UserError, match="differ in length"):
        streams.load(tmp_path / "ragged.parquet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y[:5]), "has 40 inputs, 5 labels; give one of each per example"),
        ((X, None), "both inputs and labels"),
        ((X, Y, X[:8]), "both inputs and labels"),
        ((X, Y + 0.5), "one label per example"),
        ((X, np.array([None] * 40)), "one label per example"),
        ((X[:, 0], Y), "one row per example"),
        ((X.astype(str), Y), "must be numbers"),
        ((np.where(X > 0, np.nan, X), Y), "not finite"),
        ((X, Y, X[:8, :2], Y[:8]), "same form"),
        ((X, Y, X[:8], Y[:8] + 7), "not one of the 4 classes"),
        ((X[:0], Y[:0], X[:0], Y[:0]), "without examples"),
        ((X, 1), "a single value in place of an array"),
    ],
)
def test_wrong_arrays(arguments, message):
    with pytest.raises(UserError, match=message):
        streams.from_arrays(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["a", "a", "b", "c"]}, "twice"),
        ({"classes": 2}, "not one of the 2"),
        ({"domain": 3}, "a single value in place of an array"),
        ({"test_share": 0.0}, "choose another test_share"),
        ({"test_share": 1.0}, "choose another test_share"),
        ({"domain": Y, "x_test": X, "y_test": Y}, "give the domains of both parts"),
        ({"domain": Y, "x_test": X, "y_test": Y, "domain_test": Y + 1}, "does not have"),
    ],
)
def test_wrong_options_of_arrays(options, message):
    with pytest.raises(UserError, match=message):
        streams.from_arrays(X, Y, **options)


def test_unknown_keywords_are_refused():
    with pytest.raises(UserError, match="no option of a stream named 'domains'; choose one of"):
        streams.from_arrays(X, Y, domains=Y)
    with pytest.raises(UserError, match="no option of a stream named 'foo'"):
        streams.from_arrays(X, Y, foo=3)


def test_domains_come_in_the_order_of_the_file_or_as_told(tmp_path):
    site = np.array(["Bern", "Zürich", "Genf", "Bern"])[Y]
    assert streams.from_arrays(X, Y, domain=site).task_names == ("Bern", "Zürich", "Genf")
    told = streams.from_arrays(X, Y, domain=site, task_order=["Genf", "Bern", "Zürich"])
    assert told.task_names == tuple(told.description["task_names"]) == ("Genf", "Bern", "Zürich")
    assert told[:1].task_names == ("Genf",)
    with pytest.raises(UserError, match="must list each domain of arrays once: Bern, Zürich, Genf"):
        streams.from_arrays(X, Y, domain=site, task_order=["Genf"])
    dates = [f"2024-0{9 - label}-01" for label in Y]
    data = pa.table({"a": X[:, 0], "site": site, "day": dates, "label": Y % 2})
    csv.write_csv(data, tmp_path / "dates.csv")
    stream = streams.load(tmp_path / "dates.csv", domain="site", task_order="day")
    assert stream.task_names == ("Bern", "Genf", "Zürich")
    assert stream[0].x.shape[1] == 1
    x, *_ = examples(
        tmp_path / "dates.csv", "01", stream.description["inputs"]
    )  # the other columns are no surplus
    assert x.shape == (40, 1)
    with pytest.raises(UserError, match="must hold numbers, or dates such as 2024, 2024-03, 2024Q3"):
        streams.load(tmp_path / "dates.csv", domain="site", task_order="site", drop="day")


def test_examples_for_a_short_run():
    stream = streams.from_arrays(X, Y, X[:8], Y[:8], examples=20)
    assert sum(len(y) for _, y, _ in stream) == 20
    assert sum(len(y) for _, y, _ in stream.test) == 8
    assert sum(len(y) for _, y, _ in streams.load("digits", examples=100)) == 100
    assert [len(y) for _, y, _ in streams.load("synthetic", examples=90)] == [30, 30, 30]
    with pytest.raises(UserError, match="whole number from 1 to 40"):
        streams.from_arrays(X, Y, X[:8], Y[:8], examples=41)


GAPS = pa.table(
    {
        "age": pa.array([None if i % 5 == 4 else float(i) for i in range(40)]),
        "city": pa.array(["Bern" if i < 20 else "Genf" for i in range(40)]),
        "late": pa.array([None if i == 39 else 1.0 for i in range(40)]),
        "label": Y % 2,
    }
)


def test_gaps_and_categories_are_declared_or_given_by_the_learned_rows(tmp_path):
    parquet.write_table(GAPS, tmp_path / "gaps.parquet")
    with pytest.raises(
        UserError, match="'age' of gaps has missing values; fill them, or declare them with missing=age"
    ):
        streams.load(tmp_path / "gaps.parquet", columns=["age"])
    with pytest.raises(UserError, match="'city' of gaps has no values that are known in advance"):
        streams.load(tmp_path / "gaps.parquet", columns=["city"])
    told = {"missing": ["age", "late"], "categories": ["city=Bern|Rom"], "test_share": 0.1}
    declared = streams.load(tmp_path / "gaps.parquet", **told)
    assert declared[0].x.shape[1] == 1 + 2 + 1 + 2
    stream = streams.load(tmp_path / "gaps.parquet", preparing=Preparing(0, 0.5, drawn=False), test_share=0.1)
    age, city, late = stream.description["inputs"]["columns"]
    assert age["indicator"]
    assert late["constant"] == 1
    assert set(city["values"]) <= {"Bern", "Genf"}
    assert not np.isnan(np.concatenate([task.x for task in (*stream, *stream.test)])).any()


def test_a_certified_row_changes_nothing_about_the_others():
    """The same file with one certified row changed is encoded alike in all other rows, and is as wide."""
    certified = np.flatnonzero(~Preparing(0, 0.5, drawn=False).rows(40)).tolist()
    frames = [GAPS.to_pydict(), GAPS.to_pydict()]
    for name, value in (("age", None), ("city", "Atlantis"), ("late", None)):
        frames[1][name][certified[3]] = value
    x, changed = (
        streams.from_arrays(
            pa.table({k: v for k, v in frame.items() if k != "label"}),
            np.zeros(40, int),
            pa.table({k: v for k, v in frame.items() if k != "label"}),
            np.zeros(40, int),
            tasks=1,
            preparing=Preparing(0, 0.5, drawn=False),
        )[0].x
        for frame in frames
    )
    assert x.shape == changed.shape
    same = [row for row in range(40) if row != certified[3]]
    np.testing.assert_array_equal(x[same], changed[same])


def test_labels_with_leading_zeros_keep_their_classes(tmp_path):
    """`run` and `predict` read the same file alike: 01 is the first class of 01, 02, 03."""
    file = tmp_path / "table.csv"
    file.write_text("a,label\n" + "1,01\n2,02\n3,03\n" * 20)
    names = streams.load(file, tasks=1).description["class_names"]
    assert names == ["01", "02", "03"]
    assert examples(file, names, {})[1][:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("semicolon.csv", b"a;b;label\n1,5;2;0\n2,5;3;1\n"),
        ("tabs.tsv", b"a\tb\tlabel\n1.5\t2\t0\n2.5\t3\t1\n"),
        ("packed.csv.gz", gzip.compress(b"a,b,label\n1.5,2,0\n2.5,3,1\n", mtime=0)),
        ("mark.csv", "\ufefflabel,a,b\n0,1.5,2\n1,2.5,3\n".encode()),
        ("wide.csv", "a,b,label\n1.5,2,0\n2.5,3,1\n".encode("utf-16")),
        ("quoted.csv", b'"a","b","label"\n"1.5","2","0"\n"2.5","3","1"\n'),
    ],
)
def test_dialects_of_csv(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    x, y, *_ = examples(tmp_path / name, "01", {})
    assert (x.tolist(), y.tolist()) == ([[1.5, 2.0], [2.5, 3.0]], [0, 1])


def test_a_row_number_among_the_inputs_is_named(tmp_path):
    csv.write_csv(table().append_column("Unnamed: 0", pa.array(range(40))), tmp_path / "indexed.csv")
    with pytest.warns(Advice, match="Column 'Unnamed: 0' of .* looks like a row number"):
        streams.load(tmp_path / "indexed.csv")


def test_numbers_with_a_word_among_them_are_no_categories(tmp_path):
    values = [str(i) if i != 7 else "unknown" for i in range(40)]
    csv.write_csv(pa.table({"a": values, "label": Y}), tmp_path / "words.csv")
    with pytest.raises(UserError, match=r"'a' of .* holds numbers and the text 'unknown'"):
        streams.load(tmp_path / "words.csv", preparing=Preparing(0, 0.5, drawn=False))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames(library):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    same(streams.from_arrays(frame, Y, frame[:8], Y[:8]))
