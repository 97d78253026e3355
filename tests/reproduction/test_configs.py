"""The paper's experiments: every file names its runs, and every published number has its runs."""

import csv
from functools import cache
from pathlib import Path

import pytest

from cop2l.experiments import grid
from cop2l.models.backbones import BACKBONES
from cop2l.streams import NAMES

FOLDER = Path(__file__).parents[2] / "reproduction"
RUNS = {
    "class-order": 20,
    "closed-form": 125,
    "domains": 50,
    "domains-disjoint": 60,
    "early-stopping": 30,
    "families": 20,
    "imagenette": 50,
    "ladder": 20,
    "memory": 300,
    "memory-cost": 20,
    "omega": 100,
    "task-order": 20,
    "pictures": 90,
    "presets": 40,
    "table-1": 600,
    "trainable-head": 300,
}

IMPORTED = ("dino-resnet50",)
"""Backbones of the paper whose features are imported."""


def seeds_of(name):
    seeds = grid.read_configuration(FOLDER / "configs" / f"{name}.toml")["seed"]
    return seeds if isinstance(seeds, list) else [seeds]


@cache
def runs_of(name):
    """The runs of the first seed; those of the others differ in nothing else."""
    return grid.expand(
        grid.read_configuration(FOLDER / "configs" / f"{name}.toml"), {"seed": seeds_of(name)[0]}
    )


def test_every_file_is_counted():
    assert {path.stem for path in (FOLDER / "configs").iterdir()} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_every_experiment_names_its_runs(name):
    assert (FOLDER / "configs" / f"{name}.toml").read_text().startswith("# ")
    runs = runs_of(name)
    assert len({run.hash for run in runs}) == len(runs) == RUNS[name] / len(set(seeds_of(name)))
    for run in runs:
        data, _, features = run.stream.partition("@")
        assert data in NAMES
        assert not features or features.rpartition("-")[0] in (*BACKBONES, *IMPORTED)


@pytest.mark.long
def test_every_published_number_is_about_runs_of_an_experiment():
    published_keys = set()
    with (FOLDER / "numbers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            benchmark = row["stream"], row["scenario"], row["model"], int(row["tasks"])
            settings = tuple((key, row[key]) for key in ("memory", "images") if row[key])
            published_keys.add((benchmark, row["method"], settings))
    run_keys = set()
    for name in ("table-1", "imagenette", "pictures", "domains"):
        for run in runs_of(name):
            settings = [("memory", str(run.memory))]
            settings += [("images", run.images)] * (run.scenario == "domain-incremental")
            run_keys.add(((run.stream, run.scenario, run.model, run.tasks), run.method, tuple(settings)))
    assert run_keys == published_keys


def test_settings_of_the_tables():
    """A few runs in full, as the paper states them."""
    runs = {
        (r.stream, r.scenario, r.model, r.tasks, r.method): r
        for n in ("table-1", "pictures")
        for r in runs_of(n)
    }

    def cop2l(*benchmark):
        run = runs[*benchmark, "cop2l"]
        return tuple(run.options[key] for key in ("preset", "k", "omega", "epochs", "batch", "lr"))

    ci, ti = "class-incremental", "task-incremental"
    assert cop2l("cifar10@dino-vits16-64", ci, "linear", 5) == ("paper", 4, 25.0, 2, 256, 0.001)
    assert cop2l("cifar100@dino-resnet50-64", ti, "multi-head", 20) == ("paper", 16, 1.0, 2, 256, 0.001)
    assert cop2l("emnist-letters", ci, "cnn", 13) == ("paper", 105, 20.0, 15, 130, 0.0006)
    assert cop2l("mnist", ci, "cnn", 5) == ("paper", 48, 25.0, 25, 256, 0.0009)
    icarl = [r for r in runs.values() if r.method == "icarl"]
    assert {(r.stream.endswith("dino-resnet50-64"), r.options["epochs"]) for r in icarl} == {
        (True, 30),
        (False, 10),
    }
    assert {r.stream.partition("@")[2] for r in runs.values() if r.method == "csrel"} == {"dino-resnet50-64"}
