"""Examples for a learner that is already there, from a user's file: read as `cop2l run` reads it, or refused in a sentence."""

import numpy as np
import pytest

from cop2l.errors import UserError
from cop2l.streams import load
from cop2l.streams.files import examples

ROWS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int8)
LABELS = np.array([0, 1, 0, 1])


def test_integer_features_are_multiplied_by_their_scale(tmp_path):
    file = tmp_path / "features.npz"
    np.savez(file, x=ROWS, y=LABELS, scale=np.float32(0.5))
    x, y, *_ = examples(file, "01", {})
    assert x.tolist() == (0.5 * ROWS).tolist()
    assert y.tolist() == LABELS.tolist()
    np.savez(file, x=ROWS, y=LABELS, x_test=ROWS, y_test=LABELS, scale=np.float32(0.5))
    assert np.asarray(load(file, tasks=1)[0].x).tolist() == x.tolist()


def test_a_spreadsheets_csv_has_its_label(tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes("\ufefflabel,a\r\n1,2\r\n0,3\r\n\r\n".encode())
    x, y, *_ = examples(file, "01", {})
    assert (x.tolist(), y.tolist()) == ([[2], [3]], [1, 0])


def test_a_column_of_arrays_is_all_of_an_example(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"x": ROWS.tolist(), "label": LABELS}), file)
    x, y, *_ = examples(file, "01", {})
    assert (x.tolist(), y.tolist()) == (ROWS.tolist(), LABELS.tolist())


def test_labels_with_leading_zeros_keep_their_classes(tmp_path):
    """`run` and `predict` read the same file alike: 01 is the first class of 01, 02, 03."""
    file = tmp_path / "table.csv"
    file.write_text("a,label\n" + "1,01\n2,02\n3,03\n" * 20)
    names = load(file, tasks=1).description["class_names"]
    assert names == ["01", "02", "03"]
    assert examples(file, names, {})[1][:3].tolist() == [0, 1, 2]


def test_two_columns_of_one_name_are_refused(tmp_path):
    file = tmp_path / "twice.csv"
    file.write_text("a,a,label\n1,2,0\n3,4,1\n")
    with pytest.raises(UserError, match="two columns named 'a'"):
        examples(file, "01", {})


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.csv", b"", "not a readable .csv file"),
        (
            "western.csv",
            "a,label\ncaf\u00e9,1\n".encode("latin-1"),
            "write it again as UTF-8",
        ),
        ("header.csv", "höhe,label\n1,1\n".encode("latin-1"), "write it again as UTF-8"),
        ("array.npz", "an array", "not a readable .npz file of plain arrays"),
        ("half.npz", "half", "not a readable .npz file of plain arrays"),
        ("archive.npy", "whole", "not a readable .npy file"),
        ("number.npy", "a number", "one row per example"),
    ],
)
def test_files_that_are_not_what_they_are_called(tmp_path, name, content, sentence):
    np.savez(tmp_path / "whole", x=ROWS, y=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    with (tmp_path / name).open("wb") as file:
        if content in ("an array", "a number"):
            np.save(file, ROWS if content == "an array" else np.float32(3))
        else:
            file.write({"half": whole[: len(whole) // 2], "whole": whole}.get(content, content))
    with pytest.raises(UserError, match=sentence) as caught:
        examples(tmp_path / name, "01", {})
    assert "\n" not in str(caught.value)
