"""Examples for a learner that is already there, from a user's file: read as `cop2l run` reads it, or refused in a sentence."""

import numpy as np
import pytest

from cop2l.errors import UserError
from cop2l.experiments import samples
from cop2l.streams import load

ROWS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int8)
LABELS = np.array([0, 1, 0, 1])


def test_integer_features_are_multiplied_by_their_scale(tmp_path):
    file = tmp_path / "features.npz"
    np.savez(file, x=ROWS, y=LABELS, scale=np.float32(0.5))
    x, y, _ = samples.read(file, 2)
    assert x.tolist() == (0.5 * ROWS).tolist()
    assert y.tolist() == LABELS.tolist()
    np.savez(file, x=ROWS, y=LABELS, x_test=ROWS, y_test=LABELS, scale=np.float32(0.5))
    assert np.asarray(load(file, tasks=1)[0].x).tolist() == x.tolist()


def test_a_spreadsheets_csv_has_its_label(tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes("\ufefflabel,a\r\n1,2\r\n0,3\r\n\r\n".encode())
    x, y, _ = samples.read(file, 2)
    assert (x.tolist(), y.tolist()) == ([[2], [3]], [1, 0])


def test_a_column_of_arrays_is_all_of_an_example(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"x": ROWS.tolist(), "label": LABELS}), file)
    x, y, _ = samples.read(file, 2)
    assert (x.tolist(), y.tolist()) == (ROWS.tolist(), LABELS.tolist())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.csv", b"", "not a readable .csv file"),
        (
            "western.csv",
            "a,label\ncaf\u00e9,1\n".encode("latin-1"),
            "write it again as UTF-8",
        ),
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
        samples.read(tmp_path / name, 2)
    assert "\n" not in str(caught.value)
