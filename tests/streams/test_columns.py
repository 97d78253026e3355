"""What the columns of a table hold: time, IDs, dates, numbers in other forms, quantities as labels; and what they cost."""

import datetime
import subprocess
import sys
import warnings

import numpy as np
import pytest

from cop2l import streams
from cop2l.errors import Advice, UserError
from cop2l.streams.files import check_columns, examples
from cop2l.streams.preparing import Preparing

pa = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402

N = 120
X = np.random.default_rng(0).normal(size=N)
Y = np.arange(N) % 2
HALF = Preparing(0, 0.5, drawn=False)


def table(path, **columns):
    """A table with a number a, these columns (a list is repeated) and a label."""
    columns = {name: [*values] * (N // len(values)) for name, values in columns.items()}
    write = csv.write_csv if path.suffix == ".csv" else parquet.write_table
    write(pa.table({"a": X, "label": Y} | columns), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("names", "order"),
    [
        ([2021, 2019, 2020], "2019 2020 2021"),
        (["10", "9", "-1.5"], "-1.5 9 10"),
        (["2024Q2", "2023Q4", "2024Q1"], "2023Q4 2024Q1 2024Q2"),
        (["2024-10", "2024-9", "2023-12"], "2023-12 2024-9 2024-10"),
        (["2024-03-02", "2024-03-01", "2023-12-31"], "2023-12-31 2024-03-01 2024-03-02"),
        (["2021", "before", "2019"], "2021 before 2019"),
        (["Q2", "Q1"], "Q2 Q1"),
    ],
)
def test_time_runs_forward_and_texts_keep_the_order_of_the_file(tmp_path, names, order, suffix):
    path = table(tmp_path / f"months{suffix}", month=names)
    assert streams.load(path, domain="month").task_names == tuple(order.split())
    if not {"before", "Q1"} & set(order.split()):
        site = {name: f"site {place}" for place, name in enumerate(order.split())}
        path = table(tmp_path / f"sites{suffix}", month=names, site=[site[str(name)] for name in names])
        stream = streams.load(path, domain="site", task_order="month")
        assert stream.task_names == tuple(site[name] for name in order.split())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["12 %", "7.5%", "8%"], r"numbers such as '12 %'; write them as 1234.5, or take them as names with categories=b"),
        (["1,5", "2,25"], "numbers such as '1,5'; write them as 1234.5"),
        (["1,234", "950", "12,345.5"], "numbers such as '1,234'; write them as 1234.5"),
        (["1 234", "950"], "numbers such as '1 234'"),
        (["2024-01-31", "2024-02-01 10:00:00"], "holds dates; leave it out, or make tasks of it with domain="),
        (["31.12.2023", "1.1.2024"], "holds dates; leave it out, or"),
        (["2024Q1", "2024Q2"], "holds dates; leave it out, or"),
        ([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], "holds dates; leave it out, or"),
        ([f"K-{i}" for i in range(N)], "another text in nearly every row, as an ID; leave it out, or name it in text="),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_is_no_category_is_named_with_the_option_that_helps(tmp_path, values, message, suffix):
    path = table(tmp_path / f"x{suffix}", b=values)
    with pytest.raises(UserError, match=f"Column 'b' of .*{message}.* To leave out such columns, add drop=b"):
        streams.load(path, preparing=HALF)
    assert streams.load(path, drop="b")[0].x.shape[1] == 1
    if len(values) < N:
        names = "|".join(map(str, values))
        assert streams.load(path, categories=f"b={names}")[0].x.shape[1] == 1 + len(values)


def test_all_columns_that_are_refused_are_named_at_once(tmp_path):
    path = table(tmp_path / "x.csv", **{"the day": ["1.2.2024", "2.2.2024"], "rate": ["1 %", "2 %"]})
    with pytest.raises(UserError, match=r"Column 'the day' .* add 'drop=the day,rate'\."):
        streams.load(path)


@pytest.mark.parametrize(
    "values", [["1.2", "1.10"], ["01", "1", "2"], ["044", "x"], ["12:30", "9:15"], ["a,b", "c"]]
)
def test_a_category_stays_one(tmp_path, values):
    assert streams.load(table(tmp_path / "x.parquet", b=values), preparing=HALF)[0].x.shape[1] == 1 + len(
        values
    )


def test_a_shuffled_number_that_is_called_an_id_is_named(tmp_path):
    ids = np.random.default_rng(1).permutation(N).tolist()
    with pytest.warns(
        Advice,
        match=r"Column 'customer_id' of .* or an ID, which can tell the class; leave it out with drop=",
    ):
        streams.load(table(tmp_path / "x.csv", customer_id=ids))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Advice)
        streams.load(table(tmp_path / "x.csv", width=ids))


def test_labels_that_look_like_a_quantity_and_rare_classes_are_named():
    def advice(y, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            streams.from_arrays(X[:, None], y, X[:1, None], y[:1], tasks=1, **options)
        return " ".join(str(warning.message) for warning in caught)

    assert "labels of arrays are 60 different whole numbers, as of a quantity; make classes" in advice(
        np.arange(N) % 60 * 7
    )
    assert "quantity" not in advice(np.arange(N) % 60, classes=60)
    assert advice(np.arange(N) % 20) == ""
    rare = np.array(["often"] * 110 + ["rare"] * 4 + ["five"] * 5 + ["single"])
    assert "fewer than 5 training rows: 'rare', 'single'; add rows, or remove them." in advice(rare)


def test_new_rows_unlike_the_learned_ones_are_counted_in_one_line(tmp_path):
    path = table(tmp_path / "x.csv", city=["Bern", "Rom"], age=[20, 30, 40, 60], kind=["u", "v"])
    inputs = streams.load(path, preparing=HALF).description["inputs"]
    new = tmp_path / "new.csv"
    new.write_text("a,city,age,kind\n0.1,Ulm,25,\n0.2,Bern,1000,\n0.3,,-500,\n0.4,Rom,90,\n")
    line = (
        "new.csv differs from what was learned: 'city' is unknown ('Ulm') in 1 of 4 rows; 'age' is far outside 20 to 60 in 2 of 4"
        " rows; 'kind' is missing in 4 of 4 rows; check these columns."
    )
    with pytest.warns(Advice) as caught:
        examples(new, "01", inputs)
    assert [str(warning.message).rpartition("/")[2] for warning in caught] == [line]
    feedback = tmp_path / "feedback.csv"
    feedback.write_text("predicted,label,city\n0,1,Ulm\n\n1,1,Ulm\n")
    with pytest.warns(Advice, match=r"'city' is unknown \('Ulm'\) in 2 of 2 rows; check"):
        check_columns(feedback, inputs["columns"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", Advice)
        examples(path, "01", inputs)


def test_a_folder_without_pictures_is_no_class(tmp_path):
    from small_data_sets import picture

    for name in ("ape", "bee"):
        for i in range(5):
            picture(tmp_path / name / f"{i}.png", 6, 6, i)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("none yet")
    assert streams.load(tmp_path).description["class_names"] == ["ape", "bee"]


def test_values_far_down_the_file_decide_about_a_type(tmp_path):
    """The first block of the file, 1 MB, holds whole numbers alone."""
    for end, kind in (("1.5,0\n", "number"), ("A,0\nB,1\nC,0\n", "category")):
        (tmp_path / "long.csv").write_text("code,label\n" + "1,0\n2,1\n3,1\n" * 100_000 + end)
        stream = streams.load(tmp_path / "long.csv", preparing=HALF, tasks=1)
        (column,) = stream.description["inputs"]["columns"]
        assert column["kind"] == kind
        assert (
            kind == "category" or max(float((part[0].x % 1).max()) for part in (stream, stream.test)) == 0.5
        )


LOAD = """
import sys, tracemalloc
import pyarrow
from cop2l import streams
streams.load(sys.argv[1])  # imports what it needs
tracemalloc.start()
streams.load(sys.argv[2])
print(pyarrow.default_memory_pool().max_memory() + tracemalloc.get_traced_memory()[1])
"""


def test_a_table_needs_at_most_twice_the_memory_of_its_arrays(tmp_path):
    """The peaks of pyarrow and of numpy together."""
    rows, columns = 250_000, 54
    values = np.random.default_rng(0).integers(0, 9, (rows, columns))
    wide = pa.table({f"c{i}": values[:, i] for i in range(columns)} | {"label": values[:, 0] % 2})
    csv.write_csv(wide, tmp_path / "large.csv")
    csv.write_csv(wide.slice(0, 9), tmp_path / "small.csv")
    command = [sys.executable, "-c", LOAD, tmp_path / "small.csv", tmp_path / "large.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * rows * (4 * columns + 8)
