"""The pages are what the records say, and records are collected without loss."""

import ast
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from synthetic_runs import make_run

from cop2l.errors import UserError
from cop2l.files import read_json, read_lines, write_json, write_lines
from cop2l.report.groups import Spread
from cop2l.report.runs import find_runs
from reproduction import pictures, search, tries
from reproduction.__main__ import main
from reproduction.claims import verdicts
from reproduction.collect import collect, command, condensed, read_runs
from reproduction.document import document, sources
from reproduction.explanations import UNEXPLAINED
from reproduction.explanations import read as read_explanations
from reproduction.ladder import HOLDOUT_LR, ON_FEATURES, RUNGS
from reproduction.numbers import compare, judge_jointly
from reproduction.ours import samples_of
from reproduction.published import Printed, Published
from reproduction.quotes import insert_numbers
from reproduction.verdict import Verdict

ROOT = Path(__file__).parents[2]
PAPER = {"k": 8, "omega": 15.0, "epochs": 10, "batch": 256, "lr": 0.001, "buffer": "uniform", "stop": "kl"}
AS_PAPER = {"preset": "paper", "holdout": 0, "device": "cpu", **PAPER}
AS_REPLAY = {"holdout": 0, "device": "cpu", "epochs": 20, "batch": 128, "lr": 0.01}


def difference(text, page):
    """The first line that is another; comparing whole pages would take pytest a minute to explain."""
    both = zip_longest(text.splitlines(), (ROOT / "reproduction" / page).read_text().splitlines())
    return next((pair for pair in both if pair[0] != pair[1]), None)


def set_values(path, **values):
    write_json(path, read_json(path) | values)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        run = make_run(root / f"cop2l-{seed}", "cop2l", seed, **AS_PAPER)
        said = f"/somewhere/bin/cop2l run mnist preset=paper seed={seed} --out /somewhere/else"
        set_values(run / "environment.json", command=said, device="cpu")
        features = {"stream": "cifar10@dinov2-vits14-224", "model": "linear", "device": "cuda"}
        run = make_run(root / f"replay-{seed}", "replay", seed, **AS_REPLAY | features)
        records = read_lines(run / "records.jsonl")
        for s, record in enumerate(records):
            record |= {"peak_cuda_allocated": 10**6 * (s + seed), "peak_cuda_reserved": 5 * 10**6}
            record["total_cuda_allocated"] = 1e9 * s
        write_lines(run / "records.jsonl", records)
    return root


@pytest.fixture(scope="module")
def runs(root):
    return find_runs([root]).finished()


def test_the_page_of_tables_is_what_the_runs_say(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "save", lambda figures, path: None)
    assert main(["--out", str(tmp_path / "tables.md")]) == 0
    made = (tmp_path / "tables.md").read_text()
    assert difference(made, "tables.md") is None
    shown = re.findall(r"^!\[.*\]\((.*)\)$", made, re.MULTILINE)
    assert len(shown) > 40
    assert all((ROOT / "reproduction" / name).is_file() for name in shown)


def test_the_page_of_the_search_is_what_the_records_say():
    page = search.page(tries.SETTINGS, tries.SETTINGS / "hybrid.jsonl")
    assert difference(page, "search.md") is None
    assert "nan /" not in page


def test_a_try_multiplies_the_papers_settings_and_is_known_by_twelve_digits():
    paper = {"epochs": 2, "lr": 0.001}
    declared = {"delta": 0.05, "streams": {"short": {"paper": paper, "memory": 10, "tasks": 3}}}
    stage = {"stage": 1, "streams": ["short"], "seeds": [0]}
    (job,) = tries.jobs(tries.Try({}, {"lr": 10, "epochs": 0.25}), stage, declared)
    assert (job["options"]["epochs"], job["options"]["lr"]) == (1, pytest.approx(0.01))
    near, other = (job | {"options": job["options"] | {"lr": 0.01 * factor}} for factor in (1 + 2**-52, 1.1))
    assert tries.identity(near) == tries.identity(job) != tries.identity(other)


def test_the_readme_and_the_results_show_the_headline(capsys):
    assert main(["--headline"]) == 0
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + 4
    for page in ("README.md", "docs/results.md"):
        assert f"\n\n{table}\n" in (ROOT / page).read_text()


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ([1, 1, 0], "holds"),
        ([1, 0], "holds in part"),
        ([1, 1, 1, -1], "holds in part"),
        ([1, -1], "holds in part"),
        ([1, -1, -1], "does not hold"),
        ([0, 0, -1], "does not hold"),
        ([0, 0], "cannot tell"),
        ([], "cannot tell"),
    ],
)
def test_the_word(outcomes, word):
    assert Verdict("", outcomes, "", "", []).word == word


@pytest.mark.parametrize(
    ("value", "better", "status"),
    [
        (Spread(0.9500, 0.001, 3), "higher", "reproduced"),
        (Spread(0.9600, 0.0, 3), "higher", "reproduced"),
        (Spread(0.9601, 0.0, 3), "higher", "better"),
        (Spread(0.9399, 0.0, 3), "higher", "differs"),
        (Spread(0.9300, 0.011, 3), "higher", "reproduced"),
        (Spread(0.9300, None, 1), "higher", "differs"),
        (Spread(0.8000, 0.3, 3), "higher", "differs"),
        (Spread(0.9000, 0.049, 3), "higher", "differs"),  # a scatter of our own reproduces nothing
        (Spread(0.9300, 0.0, 3), "lower", "better"),
        (Spread(0.9700, 0.0, 3), "lower", "differs"),
    ],
)
def test_status(value, better, status):
    assert compare(value, Published(0.95, 0.002), better) == status


@pytest.mark.parametrize(
    ("accuracy", "forgetting", "plasticity", "before", "after"),
    [
        (0.95, 0.00, 0.950, "better", "differs"),  # nothing forgotten, because less was learned
        (0.97, 0.02, 0.986, "better", "better"),
        (0.14, 0.05, 0.180, "reproduced", "differs"),  # it did not learn
        (0.95, 0.05, 0.960, "reproduced", "reproduced"),  # both are
        (0.90, 0.05, 0.990, "reproduced", "reproduced"),
    ],
)
def test_forgetting_is_judged_with_what_was_learned(
    tmp_path, accuracy, forgetting, plasticity, before, after
):
    run = make_run(tmp_path / "run", "cop2l", **AS_PAPER)
    set_values(run / "summary.json", accuracy=accuracy, forgetting=forgetting, plasticity=plasticity)
    (sample,) = samples_of(find_runs([run]).finished())
    row = Printed("class-incremental", "mnist", 5, "cop2l", "mlp", "forgetting", Published(0.05, 0.001))
    status, explanation = judge_jointly(sample, row, Published(0.95, 0.001), before)
    assert status == after
    assert bool(explanation) == (before != after)


def test_a_seed_counts_once_and_the_cpu_first(tmp_path):
    for name, seed, device in (("a", 0, "cuda"), ("b", 0, "cpu"), ("c", 1, "cuda")):
        make_run(tmp_path / name, "replay", seed, **AS_REPLAY | {"device": device})
    (sample,) = samples_of(find_runs([tmp_path]).finished())
    assert [run.config["device"] for run in sample.runs] == ["cpu", "cuda"]


@pytest.mark.parametrize(("seconds", "word"), [(30, "does not hold"), (15, "cannot tell"), (4, "holds")])
def test_times_on_one_machine(tmp_path, seconds, word):
    def verdict():
        runs = find_runs([tmp_path]).finished()
        (cost,) = [v for v in verdicts(samples_of(runs), runs) if v.claim == "Cheaper than Replay"]
        return cost.word

    for method, settings, time in (("cop2l", AS_PAPER, seconds), ("replay", AS_REPLAY, 10)):
        set_values(make_run(tmp_path / method, method, **settings) / "summary.json", seconds=time)
    assert verdict() == word
    set_values(tmp_path / "replay" / "environment.json", cpu="another")
    assert verdict() == "cannot tell"


def test_collected_runs_make_the_same_document(root, runs, tmp_path, capsys):
    assert main([str(root), "--collect", str(tmp_path)]) == 0
    written = sorted(tmp_path.iterdir())
    assert capsys.readouterr().out.split() == [str(path) for path in written]
    names = ["cifar10-dinov2-vits14-224-5-ci-others.jsonl", "mnist-5-ci-mlp-cop2l.jsonl"]
    assert [path.name for path in written] == names
    again = read_runs([tmp_path]).finished()
    assert len(again) == len(runs)
    first, second = (document(sources(some, None), pictures.Pictures(None, Path())) for some in (runs, again))
    assert first.splitlines() == second.splitlines()
    assert "| 4.50 ± 0.71 (2) |" in first  # the largest of the tasks
    assert "| 2.00 ± 0.00 (2) |" in first  # the mean over tasks
    before = [path.read_bytes() for path in written]
    collect(runs, tmp_path)
    assert [path.read_bytes() for path in written] == before
    written[0].write_text(written[0].read_text() + '{"summary": 3}\n')
    assert main([str(tmp_path)]) == 2
    assert f"{written[0]} is damaged" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing")]) == 2


def test_collected_bounds_are_never_below_the_original(runs):
    for run in runs:
        kept = condensed(run)["summary"]["tasks"]
        for task, line in zip(run.tasks, kept, strict=True):
            for kind, bound in task.bounds.items():
                assert bound <= line["bounds"][kind] <= bound + 1e-6


def test_commands_forget_the_machine(runs):
    commands = {run.folder.name: command(run) for run in runs}
    assert commands["cop2l-1"] == "cop2l run mnist preset=paper seed=1"
    options = "scenario=class-incremental method=replay memory=2000 seed=1"
    assert commands["replay-1"] == f"cop2l run cifar10@dinov2-vits14-224 {options}"


def test_the_most_telling_explanation_wins_and_a_wrong_one_is_refused(tmp_path):
    path = tmp_path / "explanations.toml"
    any_number = '[[differs]]\nmethod = "cop2l"\nwhy = "any"\n'
    path.write_text(f'{any_number}[[differs]]\nmethod = "cop2l"\nmetric = "forgetting"\nwhy = "this"\n')
    explanations = read_explanations(path)
    assert explanations.why("differs", method="cop2l", metric="forgetting") == "this"
    assert explanations.why("differs", method="cop2l", metric="accuracy") == "any"
    assert explanations.why("differs", method="replay", metric="accuracy") == UNEXPLAINED
    for text, message in (
        ('[[differs]]\nmethods = "cop2l"\nwhy = "any"\n', "may have"),
        ("[[", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_explanations(path)
    with pytest.raises(UserError, match="names no number"):
        insert_numbers("{95.1}", [])


def test_no_torch(root, tmp_path):
    words = [str(root), "--no-figures", "--out", str(tmp_path / "r.md")]
    code = f"import sys; from reproduction.__main__ import main; assert main({words}) == 0; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_only_public_names_of_the_report_are_used():
    allowed = ("cop2l.report", "cop2l.files", "cop2l.errors", "cop2l.metrics")
    allowed += ("cop2l.learner.presets", "cop2l.experiments.records")
    text = {"cop2l.text.P_VALUE", "cop2l.text.count", "cop2l.text.percent", "cop2l.text.rounded_text"}
    names = set()
    for path in sorted((ROOT / "reproduction").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cop2l":
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("cop2l") for alias in node.names)
    assert names
    assert not [name for name in names - text if not name.startswith(allowed) or "._" in name]


def test_the_ladder(tmp_path, capsys):
    for seed in range(2):
        make_run(tmp_path / f"paper-{seed}", "cop2l", seed, **AS_PAPER)
        make_run(
            tmp_path / f"default-{seed}",
            "cop2l",
            seed,
            **AS_PAPER | {"preset": "picking", "buffer": "threshold"},
        )
        make_run(tmp_path / f"held-{seed}", "replay", seed, **AS_REPLAY | {"holdout": 0.5, "lr": HOLDOUT_LR})
        make_run(tmp_path / f"untuned-{seed}", "replay", seed, **AS_REPLAY | {"holdout": 0.5})
    assert main([str(tmp_path), "--ladder"]) == 0
    mnist, features = capsys.readouterr().out.split("\n\n")
    rows = [line.split(" | ") for line in features.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| {name}" for name, *_ in ON_FEATURES]
    assert {row[2] for row in rows} == {"–"}
    rows = [line.split(" | ") for line in mnist.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| {name}" for name, *_ in RUNGS]
    assert [row[2].endswith("(2)") for row in rows] == [True, False, True, True]
    assert rows[1][2] == "–"


def test_the_results_show_the_ladders():
    """The rungs, by name and in order; their numbers are those of the runs that the commands make."""
    shown = [line.split(" | ")[0] for line in (ROOT / "docs" / "results.md").read_text().splitlines()]
    rungs = [f"| {name}" for name, *_ in (*RUNGS, *ON_FEATURES)]
    assert [line for line in shown if line in rungs] == rungs
