"""A check is bounded by the work that it does: its operations, its seconds, and the life of the process that started it."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from cop2l.certificates.bounding import statements
from cop2l.kernel.arithmetic import bound_follows, least_bounds, prepared
from cop2l.kernel.exact import multiplications
from cop2l.kernel.options import Options
from cop2l.kernel.verdict import statement_sentence
from cop2l.models import build


def test_a_convolution_counts_for_every_place_of_its_output():
    layer = nn.Conv2d(3, 4, 3)  # 3 x 3 x 3 x 4 weights and 4 biases, at 8 x 6 places
    assert multiplications(nn.Sequential(layer, nn.Flatten()), torch.zeros(1, 3, 10, 8)) == 48 * (108 + 4)
    assert multiplications(build("mlp", inputs=(7,), classes=2, hidden=5), torch.zeros(1, 7)) == 5 * 8 + 2 * 6
    model = build("cnn", inputs=(3, 96, 96), classes=10)
    assert multiplications(model, torch.zeros(1, 3, 96, 96)) > 1000 * sum(
        p.numel() for p in model.parameters()
    )
    words = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 4))  # a layer may return several values
    assert multiplications(words, torch.zeros(1, 3, dtype=torch.int64)) == 36 + sum(
        p.numel() for p in words[1].parameters()
    )


class Walked(list):
    """A list that counts how often it is walked through."""

    walks = 0

    def __iter__(self):
        Walked.walks += 1
        return super().__iter__()

    def __reversed__(self):
        Walked.walks += 1
        return super().__reversed__()


@pytest.mark.parametrize("kind", ["kl", "holdout"])
def test_statements_on_more_tasks_walk_through_them_no_more_often(kind):
    """Otherwise 20 000 tasks would take days."""

    def walks(tasks):
        options = Options(
            kind=kind,
            claim=("tasks", "forgetting"),
            tasks=tasks,
            max_iterations=4,
            grid=True,
            buffer="uniform",
        )
        counts = dict.fromkeys(("n", "rows"), 30) | dict.fromkeys(("errors", "errors_not_picked"), 3)
        counts |= dict.fromkeys(("prior", "compression", "evicted", "picked", "iterations", "stopped"), 0)
        counts |= {"selected": None, "compressed": None}
        parts = [{"family": "forgetting", "subject": name, **counts} for name in ("lost", "gained")]
        records = Walked(
            {"task": t, **counts, "parts": parts if t < tasks else []} for t in range(1, tasks + 1)
        )
        content = {"options": options, "records": records}
        content["statements"] = Walked(statements(options, records))
        Walked.walks, known = 0, prepared(content)
        for statement in list(content["statements"]):
            if statement["task"]:
                assert bound_follows(statement, known)
                assert statement_sentence(statement, records)
        least_bounds({**content, "statements": Walked(s for s in content["statements"] if s["task"])})
        return Walked.walks

    assert walks(12) == walks(3)


WAITS = """
import sys, time
from pathlib import Path
from cop2l.kernel.holdout import watch
watch(int(sys.argv[1]) or None, float(sys.argv[2]), Path(sys.argv[3]))
print("watched", flush=True)
time.sleep(600)
"""
STARTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), "600", sys.argv[2]])
time.sleep(600)
"""


@pytest.mark.processes
def test_a_check_ends_when_its_time_is_over(tmp_path):
    (folder := tmp_path / "folder").mkdir()
    process = subprocess.run(
        [sys.executable, "-c", WAITS, "0", "1", str(folder)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 3
    assert "takes more than the 1 seconds that --limit allows" in process.stderr
    assert not folder.exists()


@pytest.mark.processes
def test_a_check_ends_with_a_parent_that_is_killed(tmp_path):
    (folder := tmp_path / "folder").mkdir()
    words = [sys.executable, "-c", STARTS, WAITS, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "watched\n"
        parent.kill()
        assert parent.stdout.read() == ""  # the child has ended, too: nobody holds the pipe any more
    assert not folder.exists()
