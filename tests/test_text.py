"""The text about bounds: they are rounded up, once."""

import math
import random
from fractions import Fraction

import pytest

from cop2l import text
from cop2l.kernel.arithmetic import percent as of_kernel


def record(task, kind="preference", picked=80):
    rows = [
        {
            "task": t,
            "n": 100,
            "picked": picked,
            "iterations": 10,
            "test_error": 0.1,
            "test_n": 50,
            "bounds": {kind: 0.1 * t},
        }
        for t in range(1, task + 1)
    ]
    return {"task": task, "accuracy": [0.9] * task, "seconds": 2.0, "kind": kind, "tasks": rows}


def test_the_table_of_a_baseline_has_no_column_of_picks():
    summary = {
        "accuracy": 0.5,
        "forgetting": None,
        "plasticity": 0.5,
        "seconds": 90.0,
        "tasks": [
            {"task": 1, "n": 10, "picked": None, "test_error": 0.5, "test_n": 20}
            | {"bounds": {"holdout": 0.9}, "holdout": {"n": 3, "errors": 1}}
        ],
        "kind": "holdout",
        "method": "replay",
        "model": "mlp",
        "sentences": [],
        "delta": 0.05,
        "not_valid": ["Tasks share examples."],
    }
    lines = text.run_table(summary).splitlines()
    assert lines.pop(0) == "NOT VALID: Tasks share examples."
    assert lines[0].split() == [
        "task",
        "certified",
        "on",
        "errors",
        "test",
        "error",
        "error",
        "<=",
        "kind",
    ]
    assert lines[1].split() == ["1", "3", "1", "50.00", "%", "90.01", "%", "holdout"]
    assert lines[2] == "average accuracy 50.00 %, plasticity 50.00 %, 1 min 30 s"
    assert "hold at once" not in "".join(lines)


def a_summary(picked, test_error):
    rows = [row | {"test_error": test_error} for row in record(2, picked=picked)["tasks"]]
    means = {"accuracy": 0.5, "forgetting": None, "plasticity": 0.5, "seconds": 90.0}
    names = {"method": "cop2l", "model": "mlp", "sentences": []}
    return means | names | {"kind": "preference", "delta": 0.05, "not_valid": [], "tasks": rows}


def test_the_table_says_what_was_certified_on_and_picked():
    lines = text.run_table(a_summary(picked=80, test_error=0.1)).splitlines()
    assert lines[0].split("  ")[:3] == ["task", "certified on", "picked"]
    named = text.run_table(a_summary(picked=80, test_error=0.1) | {"task_names": ["task 2", "task 1"]})
    assert named.splitlines()[1].startswith('1 ("task 2")  ')
    assert lines[1].split()[:3] == ["1", "100", "80"]
    assert not [line for line in lines if "above the claim" in line]


def test_the_table_says_when_a_test_error_is_above_its_claim():
    """Task 1 claims 10 % and errs on 6 of 50, task 2 claims 20 %."""
    lines = text.run_table(a_summary(picked=80, test_error=0.12)).splitlines()
    assert lines[-2:] == [
        "Task 1: the test error, 12.00 %, is above the claim, 10.01 %: p-value 0.38 (6 of 50 test examples).",
        "The p-value is the probability of so many test errors, or more, if the true error were the claim.",
    ]


def test_percentages_are_those_of_the_kernel_and_never_below_the_bound():
    draw = random.Random(0)
    values = [draw.random() ** draw.choice((1, 4, 16)) for _ in range(3000)] + [
        k / 10_000 for k in range(10_001)
    ]
    values += [math.nextafter(v, end) for v in values[-2000:] for end in (0.0, 1.0)] + [5e-324, 1e-300]
    for value in values:
        shown = text.percent(value)
        assert shown == of_kernel(value)
        assert Fraction(shown.removesuffix(" %")) >= 100 * Fraction(value)


def test_an_interval_is_rounded_outwards():
    draw = random.Random(0)
    for _ in range(1000):
        low, high = sorted((draw.random(), draw.random()))
        ends = [Fraction(end) for end in text.interval(low, high).split(" to ")]
        assert ends[0] <= 100 * Fraction(low) < 100 * Fraction(high) <= ends[1]


@pytest.mark.parametrize(
    ("delta", "shown"),
    [(0.05, "95 %"), (0.001, "99.9 %"), (1.0, "0 %"), (1e-6, "99.9999 %"), (1e-9, "1 - 1e-9")],
)
def test_a_confidence_is_not_rounded(delta, shown):
    assert text.confidence(delta) == shown
