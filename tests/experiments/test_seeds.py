"""Runs of several seeds in one process: each has the files that it has alone, side by side or one after the other."""

import io

import pytest
from certify_cases import Later
from run_files import configured, content

from cop2l.certify import cuda
from cop2l.certify.fast import ours
from cop2l.errors import UserError
from cop2l.experiments import seeds, watch
from cop2l.experiments.run import run

SEEDS = (0, 1, 2)


class Stop(watch.Watcher):
    """Interrupts at a task."""

    def __init__(self, at):
        self.at = at

    def task(self, record):
        if record["task"] == self.at:
            raise KeyboardInterrupt


@pytest.fixture
def side_by_side(monkeypatch):
    """As on a CUDA device, without one: threads that take turns wherever they would wait for it."""
    original = cuda.Rounds.__init__

    def begin(self, *arguments):
        original(self, *arguments)
        self._done = [Later() for _ in range(cuda.PLACES)]

    monkeypatch.setattr(seeds, "share_a_device", lambda config: True)
    monkeypatch.setattr(cuda, "able", lambda engine, parts: ours(engine.model))
    monkeypatch.setattr(cuda.Rounds, "__init__", begin)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The files of each seed, run by itself."""
    folder = tmp_path_factory.mktemp("alone")
    for seed in SEEDS:
        run(configured(f"seed={seed}"), folder / str(seed))
    return [content(folder / str(seed)) for seed in SEEDS]


def beside(folder, watchers=None, **more):
    configs = [configured(f"seed={seed}", **more) for seed in SEEDS]
    folders = [folder / str(seed) for seed in SEEDS]
    return seeds.run_seeds(configs, folders, watchers or [[] for _ in SEEDS])


@pytest.mark.parametrize("way", ["one after the other", "side by side"])
def test_a_seed_has_the_files_that_it_has_alone(tmp_path, alone, way, request):
    if way == "side by side":
        request.getfixturevalue("side_by_side")
    summaries = beside(tmp_path)
    assert [summary["seed"] for summary in summaries] == list(SEEDS)
    found = [content(tmp_path / str(seed)) for seed in SEEDS]
    assert found == alone
    assert any(name.startswith("certificates/") for name in found[0])
    assert found[0]["records.jsonl"] != found[1]["records.jsonl"]


@pytest.mark.usefixtures("side_by_side")
def test_seeds_that_were_interrupted_go_on(tmp_path, alone):
    with pytest.raises(KeyboardInterrupt):
        beside(tmp_path, [[Stop(1)], [], [Stop(2)]])
    assert [(tmp_path / str(seed) / "summary.json").exists() for seed in SEEDS] == [False, True, False]
    beside(tmp_path)
    assert [content(tmp_path / str(seed)) for seed in SEEDS] == alone


@pytest.mark.usefixtures("side_by_side")
def test_an_error_names_its_seed_and_ends_no_other(tmp_path, alone):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mine.txt").write_text("")
    with pytest.raises(UserError, match=r"^Seed 1: .* holds other files"):
        beside(tmp_path)
    assert [content(tmp_path / str(seed)) for seed in (0, 2)] == [alone[0], alone[2]]


def test_what_differs_in_more_than_the_seed_is_refused(tmp_path):
    configs = [configured(), configured("memory=31", "seed=1")]
    with pytest.raises(UserError, match="differ in more than their seed"):
        seeds.run_seeds(configs, [tmp_path / "0", tmp_path / "1"], [[], []])


def test_lines_name_the_seed():
    out = io.StringIO()
    first, second = watch.of_seeds([3, 4], out)
    first.say("task 1/2")
    second.say("task 1/2")
    assert out.getvalue() == "seed 3  task 1/2\nseed 4  task 1/2\n"


def test_bars_are_one_for_each_seed(tmp_path):
    from rich.console import Console

    from cop2l.experiments.live import bars

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    beside(tmp_path, [[bar] for bar in bars(SEEDS, console)])
    shown = console.file.getvalue()
    assert "memory 30\n" in shown.replace("\r", "")
    for seed in SEEDS:
        assert f"seed {seed}" in shown
    assert "3/3" in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is back
