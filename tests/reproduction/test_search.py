"""The search for settings: what a stage's file says, and the page made of its runs."""

import json
from pathlib import Path

import pytest

from reproduction import search, tries

ROOT = Path(__file__).parents[2]
DECLARED = """
validation = 0.2
delta = 0.05
[streams.long]
data = "pictures"
tasks = 2
model = "mlp"
memory = 20
paper = { k = 8, omega = 15.0, epochs = 10, batch = 256, lr = 0.001 }
[streams.short]
data = "features"
tasks = 3
model = "linear"
memory = 10
paper = { k = 4, omega = 25.0, epochs = 2, batch = 256, lr = 0.001 }
"""
STAGE = """
stage = 1
what = "A first look."
streams = ["short", "long"]
seeds = [0, 1]
[[tries]]
paper = true
[[tries]]
stop = "kl"
grid = false
[[tries]]
k = [1, 2]
times.lr = [3, 10]
times.epochs = 0.25
"""
START = """
stage = "hybrid 1"
what = "A start."
streams = ["short"]
seeds = [0]
beside = "start=weights"
common = { preset = "hybrid" }
[[tries]]
start = "weights"
[[tries]]
method = "slda"
holdout = 0.8
[[tries]]
start = "slda"
prior = 0.2
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "declared.toml").write_text(DECLARED)
    (tmp_path / "stage-1.toml").write_text(STAGE)
    return tmp_path


def all_jobs(folder):
    declared, stage = (tries.read(folder / name) for name in ("declared.toml", "stage-1.toml"))
    return list(search.planned([stage], declared))


def made(job, accuracy, bounds, seconds):
    counts = {name: [4, 2] for name in ("own", "missed")} | {"picked": [10, 20]}
    return job | counts | {
        "accuracy": accuracy, "forgetting": 0.1, "bounds": bounds, "seconds": seconds, "machine": "a machine",
    }  # fmt: skip


def test_a_stage_names_every_run_once(folder):
    found = all_jobs(folder)
    assert len({tries.identity(job) for _, job in found}) == len(found) == 6 * 2 * 2
    assert [job["stream"] for _, job in found[:4]] == ["long", "long", "short", "short"]
    names = list(dict.fromkeys(str(tried) for tried, _ in found))
    assert names[:3] == ["paper", "stop=kl, grid=False", "k=1, lr x 3, epochs x 0.25"]
    first = found[0][1]["options"]
    assert (first["buffer"], first["kind"], first["grid"], first["k"]) == ("uniform", "kl", False, 8)
    tried, last = found[-1]
    assert tried == tries.Try({"k": 2}, {"lr": 10, "epochs": 0.25})
    assert last["options"] | {"k": 2, "epochs": 1, "omega": 25.0, "memory": 10, "tasks": 3} == last["options"]
    assert last["options"]["lr"] == pytest.approx(0.01)
    assert (last["options"]["buffer"], last["options"]["grid"]) == ("threshold", True)


def test_a_run_is_known_by_its_options_not_by_their_last_bit(folder):
    _, job = all_jobs(folder)[-1]
    other = job | {"options": job["options"] | {"lr": job["options"]["lr"] * (1 + 2**-52)}}
    assert tries.identity(other) == tries.identity(job)
    assert tries.identity(job | {"options": job["options"] | {"lr": 0.011}}) != tries.identity(job)


def test_the_page_sets_tries_beside_the_paper_and_the_baseline(folder):
    lines = []
    for tried, job in all_jobs(folder):
        name = str(tried)
        if name == "paper":
            lines.append(made(job, 0.9, [0.5, 0.7], 10.0))
        elif name == "stop=kl, grid=False":
            lines.append(made(job, 0.8, [0.1, 0.3], 8.0))
        elif name.startswith("k=1, lr x 3"):
            lines.append(made(job, 0.92, [0.1, 0.06 + 0.04 * job["seed"]], 5.0))
        elif name.startswith("k=2, lr x 3") and job["stream"] == "short":
            lines.append(job | {"error": "Training diverged.", "seconds": 1.0, "machine": "another"})
    (folder / "tried.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    old = folder / "search.jsonl"
    old.write_text(
        "".join(
            json.dumps({"stream": "mnist", "tasks": 5, "model": "mlp", "seed": s, "opts": {"prior": p}} | values) + "\n"
            for p, values in ((0.5, {"acc": 0.9, "forg": 0.1, "combined": 0.1}), (0.2, {"acc": 0.8, "forg": 0.2}))
            for s in (0, 1)
        )
        + json.dumps({"stream": "mnist", "opts": {}, "error": "stopped"})
    )  # fmt: skip
    text = search.page(folder, old)
    assert "**Stage 1**, seeds 0, 1. A first look." in text
    assert "No rule was written down yet." in text
    ours = "| `k=1, lr x 3, epochs x 0.25` | +2.00 / 0.450 / 0.50 | +2.00 / 0.450 / 0.50 | +2.00 / 0.450 / 0.50 |"
    assert ours in text
    assert text.index(ours) < text.index("| `stop=kl, grid=False` | -10.00 / 1.000 / 0.80 |")
    assert "k=2, lr x 3" not in text.partition("## Every try")[0]  # it failed
    assert "| `k=2, lr x 3, epochs x 0.25` | 0 | Training diverged. |" in text
    assert "| 1 | `paper` | 1 | 90.00 | 10.00 | 60.00 | 70.00 | 3 | 12 | 3 | 10.0 | A |" in text
    assert "2 settings were tried, in 4 runs, on 1 streams." in text
    assert search.settings(search.read(old)) == 2
    assert "| 1 ‡ | `prior=0.5` | 90.00 ± 0.00 (2) | 10.00 ± 0.00 (2) | 10.01 ± 0.00 (2) |" in text
    (folder / "decision.toml").write_text('rule = "The smallest."\ndecision = "That one."\n')
    text = search.page(folder, None)
    assert "The smallest." in text
    assert "That one." in text
    assert "No search was recorded." in text


def test_a_stage_with_common_options_stands_beside_its_own_first_try(folder):
    (folder / "hybrid-1.toml").write_text(START)
    stage, declared = (tries.read(folder / name) for name in ("hybrid-1.toml", "declared.toml"))
    found = [(str(tried), job) for tried, job in search.planned([stage], declared)]
    rest = {"memory": 10, "tasks": 3, "delta": 0.05}
    assert [(name, job["options"]) for name, job in found] == [
        ("start=weights", {"preset": "hybrid", "start": "weights"} | rest),
        ("method=slda, holdout=0.8", {"method": "slda", "holdout": 0.8} | rest),
        ("start=slda, prior=0.2", {"preset": "hybrid", "start": "slda", "prior": 0.2} | rest),
    ]
    values = [(0.8, [0.2, 0.4], 4.0), (0.7, [0.2, 0.1], 1.0), (0.81, [0.1, 0.2], 2.0)]
    lines = [made(job, *value) for (_, job), value in zip(found, values, strict=True)]
    (folder / "tried.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "decision.toml").write_text('[hybrid]\nrule = "The cheapest."\ndecision = "This one."\n')
    text = search.page(folder, None).partition("## The analytic start")[2].partition("## Every try")[0]
    assert "The cheapest." in text
    assert "This one." in text
    assert "**Stage hybrid 1**, seeds 0. A start." in text
    assert "| `start=slda, prior=0.2` | +1.00 / 0.500 / 0.50 | +1.00 / 0.500 / 0.50 |" in text
    assert "| `method=slda, holdout=0.8` | -10.00 / 0.500 / 0.25 |" in text


def test_the_page_is_what_the_records_say():
    page = search.page(tries.SETTINGS, tries.SETTINGS / "hybrid.jsonl")
    assert (ROOT / search.PAGE).read_text() == page
    assert "nan /" not in page
    assert "No search was recorded." not in page
