"""What is claimed is said in words: in the terminal, on the page, in JSON and in compare; bounds are rounded up."""

import html
import json
import re

import pytest
from family_runs import GROUPS, finished_run, write_data

from cop2l.certificates.families import Measured, claims
from cop2l.cli import main
from cop2l.files import read_json
from cop2l.report.runs import find_runs
from cop2l.text import percent, run_table

SIZES = Measured([100, 100], [0.1, 0.2], [0.05, 0.0], [{"north": 0.3}, {}], {3: 0.25})


def claimed(family, task=None, subject=None, value=0.186_001):
    return {"family": family, "task": task, "subject": subject, "kind": "holdout", "value": value}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    data = write_data(folder / "mine.npz")
    for seed in (0, 1):
        finished_run(folder / "runs" / str(seed), data, method="slda", holdout=0.5, seed=seed)
    return folder / "runs"


def averages(runs):
    """The bounds on the average, of both seeds."""
    claims = [read_json(runs / seed / "summary.json")["claims"] for seed in "01"]
    return [next(s["value"] for s in found if s["family"] == "average") for found in claims]


def test_each_family_has_one_sentence_beside_what_was_measured():
    (average,) = claims([claimed("average")], SIZES)
    assert average.sentence == (
        "The error rate averaged over the 2 tasks is at most 18.61 % (measured on the test part: 15.00 %)."
    )
    lost, mean = claims(
        [claimed("forgetting", 1, "lost"), claimed("forgetting", 1, "net"), claimed("forgetting")], SIZES
    )
    assert lost.sentence == (
        "No task lost more than 18.61 points since it was learned. The largest fall of a test accuracy: 5.00 points."
    )
    assert [part.about for part in lost.parts] == ["task 1, lost", "task 1, net"]
    assert mean.sentence.endswith("(the mean fall of the test accuracies: 5.00 %).")
    (classes,) = claims([claimed("classes", 1, 3), claimed("classes", 2, 4, 0.5)], SIZES)
    assert "Of every class of every task at most 50.00 % is misclassified" in classes.sentence
    assert [part.measured for part in classes.parts] == ["25.00 %", ""]
    (groups,) = claims([claimed("groups", 1, "north"), claimed("groups", 2, "south", 1.0)], SIZES)
    assert groups.parts[0].sentence == (
        "Of group north in task 1 at most 18.61 % is misclassified (measured on the test part: 30.00 %)."
    )
    assert "no bound: none of its examples" in groups.parts[1].sentence


def test_a_part_of_the_tasks_is_not_called_every_task():
    three = Measured([1, 1, 1], [0.1, 0.1, 0.1], [0.0, 0.0, 0.0])
    (lost,) = claims([claimed("forgetting", 2, "lost")], three)
    assert lost.sentence.startswith("None of the tasks 2 lost more than")
    (classes,) = claims([claimed("classes", 3, 0)], three)
    assert classes.sentence.startswith("Of every class of task 3 at most")


def test_many_statements_are_not_listed_where_people_read_along():
    (classes,) = claims([claimed("classes", 1, c) for c in range(30)], SIZES)
    assert len(classes.parts) == 30
    assert len(classes.lines) == 1


def test_show_and_json_have_every_sentence(runs, capsys):
    main(["show", str(runs / "0"), "--brief"])
    shown = capsys.readouterr().out
    summary = read_json(runs / "0" / "summary.json")
    for start in (
        "The error rate averaged over",
        "No task lost more than",
        "Of every class",
        "Of every group",
    ):
        assert start in shown
        assert any(sentence.startswith(start) for sentence in summary["sentences"])


def test_the_page_lists_what_is_certified(runs, tmp_path):
    assert main(["report", str(runs), "--out", str(tmp_path / "page.html")]) in (0, None)
    text = html.unescape(re.sub(r"<[^>]+>", " ", (tmp_path / "page.html").read_text())).replace("\u00a0", " ")
    assert "each run's statements hold at once" in text
    values = averages(runs)
    assert f"is at most {percent(max(values))} (measured on the test part:" in text
    assert all(f"group {name} in task 2" in text for name in GROUPS)


def test_compare_has_the_average_claim(runs, capsys):
    main(["compare", str(runs), "--format", "json"])
    cells = {cell["metric"]: cell for cell in json.loads(capsys.readouterr().out)}
    values = averages(runs)
    assert cells["average"]["mean"] == pytest.approx(sum(values) / 2)
    main(["compare", str(runs), "--metric", "lost", "worst-lost"])
    assert "certified forgetting, worst task" in capsys.readouterr().out


def test_without_tasks_no_column_is_a_bound(tmp_path):
    data = write_data(tmp_path / "mine.npz")
    run = finished_run(tmp_path / "run", data, method="slda", holdout=0.5, claim=["average"], groups=[])

    table = run_table(read_json(run / "summary.json"))
    assert "error <=" not in table
    assert "With probability at least 95 % over the draw of the data, all statements hold" in table
    (run,) = find_runs([run]).finished()
    assert all(task.bounds == {} for task in run.tasks)


def test_the_table_of_the_documentation_is_made_of_runs(runs, capsys):
    from reproduction.__main__ import main as reproduce
    from reproduction.families import HEADER

    assert reproduce([str(runs), "--families"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header == "| " + " | ".join(HEADER) + " |"
    assert "`slda`, 0.5 withheld (2)" in row
    certified, mean = (float(row.split(" | ")[HEADER.index(name)]) for name in HEADER[3:5])
    assert 0 < certified < mean < 100
