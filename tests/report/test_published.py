"""Published numbers stand beside the runs that they are about, and beside no others."""

import re
from pathlib import Path

import pytest
from synthetic_runs import make_run

from cop2l.errors import UserError
from cop2l.report import formats, published
from cop2l.report.comparison import tables
from cop2l.report.groups import group
from cop2l.report.runs import read_run

HEADER = "stream,tasks,scenario,model,method,metric,value,sd,source"
ACCURACY = "mnist,5,class-incremental,mlp,cop2l,accuracy,95.12,0.18,Article 1"


@pytest.fixture
def file(tmp_path):
    def write(*lines, header=HEADER):
        path = tmp_path / "Numbers.csv"
        path.write_text("\n".join([header, *lines]) + "\n")
        return path

    return write


def cells(rows, *runs, metrics=("accuracy",)):
    return [cell for table in tables(group(runs), metrics, rows) for cell in table.filled]


def beside(rows, *runs, metrics=("accuracy",)):
    return [cell.published for cell in cells(rows, *runs, metrics=metrics)]


def test_a_number_stands_beside_the_runs_it_is_about(file, run_set):
    rows = published.read_published(
        file(
            ACCURACY,
            "mnist,5,class-incremental,mlp,cop2l,forgetting,3.35,,Article 2",
            "mnist,5,class-incremental,mlp,cop2l,seconds,12.5,,",
        )
    )
    accuracy, forgetting, seconds = tables(group(run_set.runs), ["accuracy", "forgetting", "seconds"], rows)
    assert accuracy.cells[0][0].published == (0.9512, 0.0018, "Article 1")
    assert forgetting.cells[0][0].published == (0.0335, None, "Article 2")
    assert seconds.cells[0][0].published == (12.5, None, "")
    others = [cell for cell in accuracy.filled if cell is not accuracy.cells[0][0]]
    assert others
    assert not any(cell.published for cell in others)
    text = formats.markdown([accuracy, forgetting])
    assert "(95.12 ± 0.18)" in text
    assert "(3.35)" in text
    assert "published numbers in parentheses, from Article 1" in text
    assert "published" not in formats.markdown(tables(group(run_set.runs), ["accuracy"]))


@pytest.mark.parametrize(
    "difference",
    [
        {"stream": "mine/mnist.npz"},
        {"stream": "mnist@some-features"},
        {"tasks": 4},
        {"scenario": "task-incremental"},
        {"model": "cnn"},
        {"method": "replay"},
    ],
    ids=str,
)
def test_a_run_that_is_anything_else_has_no_published_number(file, tmp_path, difference):
    rows = published.read_published(file(ACCURACY))
    assert beside(rows, read_run(make_run(tmp_path / "same", name="mnist"))) != [None]
    assert beside(rows, read_run(make_run(tmp_path / "other", name="mnist", **difference))) == [None]


def test_a_further_column_is_a_key_of_the_configuration(file, tmp_path):
    rows = published.read_published(
        file(
            "mnist,5,class-incremental,mlp,cop2l,accuracy,95.12,2000,kl,",
            "mnist,5,class-incremental,mlp,cop2l,accuracy,91,500.0,,3",
            header="stream,tasks,scenario,model,method,metric,value,memory,stop,patience",
        )
    )
    settings = {"stop": "kl", "options": {"patience": 3}}
    small, large, middle = (
        read_run(make_run(tmp_path / name, **settings, **changed))
        for name, changed in (("a", {"memory": 500}), ("b", {}), ("c", {"memory": 1000}))
    )
    matches = cells(rows, small, large, middle)
    assert [cell.published and cell.published.mean for cell in matches] == [0.91, None, 0.9512]
    assert beside(rows, read_run(make_run(tmp_path / "d", stop="none", options={"patience": 3}))) == [None]


def test_a_column_that_no_configuration_has_is_refused(file, tmp_path):
    row = "mnist,5,class-incremental,mlp,cop2l,accuracy,95.12,2000"
    rows = published.read_published(
        file(row, header="stream,tasks,scenario,model,method,metric,value,memmory")
    )
    with pytest.raises(UserError, match=r"The column memmory \(line 2 of .*Numbers.csv\) is no key"):
        beside(rows, read_run(make_run(tmp_path / "run")))
    assert beside(rows, read_run(make_run(tmp_path / "other", stream="digits"))) == [None]


def test_two_numbers_for_one_run_are_refused(file, tmp_path):
    rows = published.read_published(file(ACCURACY, ACCURACY.replace("95.12", "96")))
    with pytest.raises(UserError, match=r"stands in line 2 of .*Numbers.csv and in line 3 of .*Numbers.csv"):
        beside(rows, read_run(make_run(tmp_path / "run")))


@pytest.mark.parametrize(
    ("header", "line", "sentence"),
    [
        ("stream,tasks", "mnist,5", "has no column scenario; it needs stream, tasks, scenario, model"),
        ("", "", "has no column stream"),
        (f"{HEADER},sd", f"{ACCURACY},1", "has two columns of one name"),
        (HEADER, ACCURACY.replace("95.12", "high"), "In line 2 of .* the value is 'high'; give a number"),
        (HEADER, ACCURACY.replace("95.12", "nan"), "the value is 'nan'; give a number"),
        (HEADER, ACCURACY.replace("95.12", "1e300"), "the value is '1e300'; give a number"),
        (HEADER, ACCURACY.replace("0.18", "±1"), "the sd is '±1'; give a number"),
        (HEADER, ACCURACY.replace("0.18", "-1"), "the sd is '-1'; give a number"),
        (HEADER, ACCURACY.replace(",5,", f",{'9' * 5000},"), "the number of tasks is '9"),
        (HEADER, ACCURACY.replace("95.12", ""), "In line 2 of .* the column value is empty; fill it"),
        (HEADER, ACCURACY.replace("accuracy", "acuracy"), "In line 2 of .*did you mean 'accuracy'?"),
        (HEADER, ACCURACY.replace(",5,", ",five,"), "In line 2 of .* the number of tasks is 'five'"),
        (HEADER, "mnist,5", "In line 2 of .* are 2 cells for 9 columns; give it 9"),
        (HEADER, 'mnist,"5', "is not readable as CSV"),
    ],
)
def test_a_bad_file_is_one_sentence(file, header, line, sentence):
    with pytest.raises(UserError, match=sentence):
        published.read_published(file(line, header=header))


def test_the_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs" / "one", "replay")
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    (numbers,) = re.findall(r"```text\n(stream,.*?)```", text, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "numbers.csv").write_text(numbers)
    monkeypatch.chdir(tmp_path)
    variables = {}
    exec(code, variables)
    assert "(94.48 ± 0.28)" in capsys.readouterr().out
    assert "published 94.48" in variables["html"]


def test_a_file_that_is_no_text_is_one_sentence(tmp_path):
    (tmp_path / "numbers.csv").write_bytes(b"\xff\xfe\x00stream")
    with pytest.raises(UserError, match="is not readable as CSV"):
        published.read_published(tmp_path / "numbers.csv")
    with pytest.raises(UserError, match="There is no file"):
        published.read_published(tmp_path / "none.csv")
