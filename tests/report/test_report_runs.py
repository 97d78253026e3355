"""Reading run directories: what is finished is read exactly, everything else becomes one sentence."""

import pytest
from synthetic_runs import make_run

from cop2l.errors import UserError
from cop2l.files import read_json, write_json
from cop2l.report.runs import LeftOut, Run, find_runs, read_run


def test_a_finished_run_is_what_its_files_say(tmp_path, monkeypatch):
    monkeypatch.setattr("cop2l.report.runs.read_certificate", lambda folder: folder)
    folder = make_run(tmp_path / "run", seed=4)
    summary = read_json(folder / "summary.json")
    run = read_run(folder)
    assert isinstance(run, Run)
    assert [list(row) for row in run.matrix] == summary["matrix"]
    assert (run.accuracy, run.forgetting, run.plasticity) == tuple(
        summary[key] for key in ("accuracy", "forgetting", "plasticity")
    )
    assert [task.bounds for task in run.tasks] == [task["bounds"] for task in summary["tasks"]]
    assert (run.tasks[0].picked, run.tasks[0].errors_not_picked) == tuple(
        summary["tasks"][0][k] for k in ("picked", "errors_not_picked")
    )
    assert run.seed == 4
    assert len(run.classes[-1]) == 10
    assert run.certificate == folder / "certificates" / "after-05"
    assert run.over_tasks("peak_memory") == 400_000_005


def test_an_unfinished_run_is_a_sentence(tmp_path):
    left = read_run(make_run(tmp_path / "run", finished_tasks=2))
    assert (
        left.sentence
        == f"{tmp_path / 'run'} is not finished (2 tasks recorded so far); run its command again to continue."
    )


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("summary.json", "{", "summary.json (not JSON)"),
        ("summary.json", "[]", "summary.json (not an object)"),
        ("summary.json", "[" * 100_000, "summary.json (not JSON)"),
        ("summary.json", "{}", "summary.json (without its checksum)"),
        ("config.json", None, "config.json (missing)"),
        ("records.jsonl", "", "records.jsonl (0 lines for 5 tasks)"),
        ("records.jsonl", '{"task": 1}\n', "records.jsonl (line 1 is without its checksum)"),
        ("records.jsonl", "nonsense\n", "records.jsonl (line 1 is not JSON)"),
        ("records.jsonl", b"\xff\xfe\n", "records.jsonl (line 1 is not JSON)"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path, file, content, reason):
    path = make_run(tmp_path / "run") / file
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    left = read_run(tmp_path / "run")
    assert isinstance(left, LeftOut)
    assert reason in left.sentence
    assert left.sentence.endswith("delete it and run its command again.")


def test_a_summary_of_another_version_is_a_sentence(tmp_path):
    folder = make_run(tmp_path / "run")
    summary = read_json(folder / "summary.json")
    without = {key: value for key, value in summary.items() if key != "matrix"}
    for content in (summary | {"colour": 1}, without, summary | {"tasks": [{"colour": 1}]}):
        write_json(folder / "summary.json", content)
        left = read_run(folder)
        assert isinstance(left, LeftOut)
        assert "summary.json (not in the form of this version: " in left.sentence


def test_find_reads_every_run_below_and_none_twice(folder):
    run_set = find_runs([folder, folder / "cop2l-0", folder / ".." / folder.name / "cop2l-1"])
    assert len(run_set.runs) == 11
    assert [left.folder.name for left in run_set.left_out] == ["unfinished"]


def test_wrong_paths_are_errors_for_the_user(tmp_path):
    with pytest.raises(UserError, match="nothing at"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no run directory"):
        find_runs([tmp_path])
