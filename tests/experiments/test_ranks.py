"""Ranks leave what one process leaves, bit for bit; one that fails, differs or scores wrongly is noticed."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from run_files import configured, content

from cop2l import CoP2L
from cop2l.audit.verify import verify
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.experiments.ranks import check
from cop2l.experiments.run import run
from cop2l.experiments.sweep import warm_context
from cop2l.kernel import exact
from cop2l.kernel.exact import sample
from cop2l.learner.ranks import LOST, Ranks
from cop2l.learner.state import threads
from cop2l.models import build
from doc_pages import python

LONG = pytest.mark.long


# ---- a run, started by torchrun

SMALL = (
    *("method=cop2l", "data.n=5000", "data.n_test=100", "tasks=2", "architecture.hidden=16", "memory=2500"),
    *("epochs=2", "lr=0.3", "k=16", "max_iterations=9", "anytime=true", "claim=tasks,forgetting"),
)
"""Three blocks of examples and two of the buffer."""
SPLIT = ("--data", "synthetic", "--tasks", "2", "--option", "n=5000", "--option", "n_test=100")
FAILING = Path(__file__).with_name("failing_rank.py")
STOPPED = "Stopped; run the same command again to continue after the last finished task."


def torchrun(ranks, *arguments, cwd=None, **environment):
    """The finished process, with the output of all its ranks."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = [*launcher, *map(str, arguments)]
    return subprocess.run(arguments, env=variables, cwd=cwd, capture_output=True, text=True, timeout=300)


def command(folder):
    return ["run", "synthetic", *SMALL, "--out", folder]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_process")
    run(configured(*SMALL), folder / "run")
    return content(folder / "run")


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=LONG), 2, pytest.param(3, marks=LONG)])
def test_ranks_leave_what_one_process_leaves(ranks, tmp_path, one_process):
    process = torchrun(ranks, "-m", "cop2l", *command(tmp_path / "run"))
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("task 1/2") == process.stdout.count("Results:") == 1
    assert content(tmp_path / "run") == one_process
    assert {"certificates/after-02/theta.safetensors", "state/learner.safetensors"} <= {*one_process}
    assert main(["verify", str(tmp_path / "run"), *SPLIT]) == 0
    if ranks == 3:
        again = torchrun(2, "-m", "cop2l", *command(tmp_path / "run"))
        assert (again.returncode, again.stderr.count("already finished")) == (0, 1)


@pytest.mark.parametrize(
    ("ranks", "rank", "failure", "sentence"),
    [
        pytest.param(3, 1, "dies", f"cop2l: {LOST}", marks=LONG),
        pytest.param(2, 0, "dies", f"cop2l: {LOST}", marks=LONG),
        pytest.param(2, 1, "hangs", f"cop2l: {LOST}", marks=LONG),
        pytest.param(2, 1, "is stopped", f"cop2l: {LOST}", marks=LONG),
        pytest.param(2, 0, "is interrupted", STOPPED, marks=LONG),
        (2, 1, "errs", "cop2l: This rank has an error of its own."),
    ],
)
def test_a_rank_that_fails_ends_all_and_the_run_goes_on_later(
    ranks, rank, failure, sentence, tmp_path, one_process
):
    folder = tmp_path / "run"
    limit = {"COP2L_RANKS_MINUTES": "0.3"} if failure == "hangs" else {}
    process = torchrun(ranks, FAILING, rank, failure, *command(folder), **limit)
    sentences = [line for line in process.stderr.splitlines() if line.startswith(("cop2l: ", "Stopped;"))]
    assert process.returncode != 0
    assert sentences == [sentence]
    assert "Results:" not in process.stdout
    assert not (folder / "summary.json").exists()
    shutil.copytree(folder, tmp_path / "again")
    run(configured(*SMALL), tmp_path / "again")
    assert content(tmp_path / "again") == one_process
    if ranks == 3:
        again = torchrun(2, "-m", "cop2l", *command(folder))
        assert again.returncode == 0, again.stderr
        assert "continuing after task 1" in again.stdout
        assert content(folder) == one_process


def test_the_python_of_the_page(tmp_path, monkeypatch):
    (code,) = python("integrations.md", "Several processes and machines")
    (tmp_path / "learn.py").write_text(code)
    process = torchrun(2, "learn.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("all statements hold at once") == 1
    alone = re.sub(r"^(dist\.|learner\.engine\.ranks = ).*\n", "", code, flags=re.MULTILINE)
    alone = alone.replace("learner.engine.ranks.is_first", "True").replace('"run"', '"alone"')
    monkeypatch.chdir(tmp_path)
    with threads(1):
        exec(alone, {})
    assert content(tmp_path / "run") == content(tmp_path / "alone") != {}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_cuda_device(tmp_path):
    run(configured(*SMALL, "device=cuda"), tmp_path / "alone")
    process = torchrun(2, "-m", "cop2l", *command(tmp_path / "run"), "device=cuda")
    assert process.returncode == 0, process.stderr
    assert content(tmp_path / "run") == content(tmp_path / "alone")


def test_what_cannot_be_shared_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="run replay without torchrun"):
        check(configured("method=replay"))
    with pytest.raises(UserError, match="start with torchrun"):
        Ranks()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "here")
    monkeypatch.setenv("COP2L_RANKS_MINUTES", "soon")
    assert main(["run", "synthetic", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("cop2l: The ranks cannot be joined (could not convert")
    assert not (tmp_path / "run").exists()


# ---- a learner, in processes of this test

BLOCK = 16
"""Rows of a block: so few that small tasks have several blocks for each rank."""
ROWS = (20, 150, 90, 20)
"""Of the first task three ranks score two blocks; in the last one they share the buffer, which has several tasks."""
CASES = {
    "class-incremental": {"preset": "paper"},
    "task-incremental": {"claim": ("tasks", "forgetting")},
    "domain-incremental": {"preset": "paper", "optimiser": "adam", "omega": 1.0},
    "float64": {"dtype": torch.float64},
    "a memory map": {},
    "training diverges": {"lr": 1e12, "omega": 1e6},
}
CHANGES = {
    "options": {"lr": 0.2},
    "parameters": {"seed": 1},
    "data": {},
    "classes": {"heads": {1: (0, 1, 2)}},
}
DIFFERENT = "Rank 1 and rank 0 do not have the same {}; give the same to every rank."


def in_ranks(function, size, store):
    """What the function returns on every rank of a group."""
    with ProcessPoolExecutor(size, mp_context=warm_context()) as pool:
        return [*pool.map(partial(on_rank, function, size, store), range(size))]


def on_rank(function, size, store, rank):
    exact.LARGE_BLOCK = BLOCK
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        return function(Ranks())
    finally:
        dist.destroy_process_group()


def clouds(tasks, scenario="class-incremental"):
    """Tasks of few different inputs, so that losses tie across the blocks."""
    draw, data = np.random.default_rng(0), {}
    for t, n in enumerate(ROWS[:tasks], 1):
        x = draw.integers(0, 3, (n, 6)).astype(np.float32) - 1
        above = x @ draw.normal(size=6) + draw.normal(size=n) > 0
        data[t] = (x, above + 2 * (t - 1) * (scenario != "domain-incremental"))
    return data


def learned(ranks, data, scenario="class-incremental", seed=0, dtype=torch.float32, heads=None, **options):
    """The trace of every task, and in the end the certificate, or the sentence of an error."""
    model = build("mlp", inputs=(6,), classes=8, seed=seed, hidden=9).to(dtype)
    small = {"k": 4, "epochs": 2, "lr": 0.1, "batch": 8, "memory": 60, "max_iterations": 6, "repeats": True}
    learner, results = CoP2L(model, scenario=scenario, **{"preset": "picking", **small, **options}), []
    learner.engine.ranks = ranks
    try:
        for t, (x, y) in data.items():
            learner.learn(x, y, classes=(heads or {}).get(t, sorted({*y.tolist()})))
            results.append(learner.engine.trace)
        return [*results, learner.certify(data)]
    except UserError as error:
        return [*results, str(error)]


def compare(folder, ranks):
    """For every case what comes of it in one process and with ranks."""
    results = {}
    for name, options in CASES.items():
        scenario = name if name.endswith("incremental") else "class-incremental"
        data = clouds(4, scenario)
        if name == "a memory map":
            data = {t: (np.load(folder / f"{t}.npy", mmap_mode="r"), y) for t, (_, y) in data.items()}
        traces = [learned(joined, data, scenario, **options) for joined in (None, ranks)]
        results[name] = [repr([*trace, getattr(end, "content", end)]) for *trace, end in traces]
    return results


def test_learners_of_ranks_have_the_bits_of_one(tmp_path):
    for t, (x, _) in clouds(4).items():
        np.save(tmp_path / f"{t}.npy", x)
    for results in in_ranks(partial(compare, tmp_path), 3, tmp_path / "group"):
        for name, (alone, shared) in results.items():
            assert alone == shared, name
            assert ("diverged" in alone) == (name == "training diverges")


def differ(ranks):
    """The errors if rank 1 does something else."""
    sentences = []
    for name, options in CHANGES.items():
        data, is_other = clouds(1), ranks.rank == 1
        data[1][0][7, 0] += is_other and name == "data"
        sentences += learned(ranks, data, **options if is_other else {})
    return sentences


def test_a_rank_that_differs_is_named(tmp_path):
    expected = [DIFFERENT.format(name) for name in CHANGES]
    assert in_ranks(differ, 2, tmp_path / "group") == [expected, expected]


def learn_spoiled(rows, folder, ranks):
    """Learn two tasks while rank 1 scores its own rows wrongly, or gets wrong scores of all rows."""
    score = ranks.score

    def spoil(scores):
        wrong = [(losses.flip(0), errors) for losses, errors in scores]
        return wrong if ranks.rank == 1 else scores

    if rows == "own":
        ranks.score = lambda own, parts: score(lambda rows: spoil(own(rows)), parts)
    else:
        ranks.score = lambda own, parts: spoil(score(own, parts))
    end = learned(ranks, clouds(2), stop="none")[-1]
    return end if isinstance(end, str) else end.save(folder / f"{ranks.rank}")


def test_a_fault_in_the_gathered_scores_is_caught(tmp_path, monkeypatch):
    sentences = in_ranks(partial(learn_spoiled, "all", tmp_path), 2, tmp_path / "first group")
    assert sentences == [DIFFERENT.format("parameters")] * 2
    assert in_ranks(partial(learn_spoiled, "own", tmp_path), 2, tmp_path / "second group") == [None] * 2
    monkeypatch.setattr(exact, "LARGE_BLOCK", BLOCK)
    for rank in ("0", "1"):
        verdict = verify(tmp_path / rank, clouds(2), repeats_are_draws=True)
        assert verdict.status == "invalid"
        assert "Learning again gives another" in str(verdict)


def test_ranks_score_about_the_same_number_of_blocks():
    parts = [sample(torch.zeros(n, 600), torch.zeros(n), 1, 0) for n in (1400, 300)]
    shares = [Ranks.shares(SimpleNamespace(rank=rank, size=3), parts) for rank in range(3)]
    rows = [[len(range(1400)[S]), len(range(300)[B])] for S, B in shares]
    assert rows == [[512, 0], [768, 0], [120, 300]]
