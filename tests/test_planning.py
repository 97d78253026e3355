"""The plan: forward it is the bounds, backward it is the least that meets the target."""

import json
import math
from dataclasses import asdict
from fractions import Fraction

import pytest

from cop2l import bounds, plan
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.kernel.options import Options
from doc_pages import blocks, sections

LOG = math.log(0.05)


def test_forward_is_the_bounds():
    result = plan(error=0.03, picks=0.01, examples=6000, memory=8000, tasks=10)
    expected = {
        ("holdout", "at hand"): bounds.holdout_certificate(3000, 90, 10, LOG),
        ("preference", "at hand"): bounds.preference_certificate(6000, 60, 180, 6, 10, LOG, grid=21),
    }
    for (kind, data), bound in expected.items():
        assert result.row(kind, data).bound == float(bound)
    without_data = result.row("preference", "gone")
    assert without_data.certify == int((8001 - math.sqrt(9.22 * 8001)) / 10)
    compressed = math.ceil(Fraction("0.04") * without_data.certify)
    assert without_data.bound == float(
        bounds.buffer_certificate(without_data.certify, compressed, 6, 10, LOG, grid=21)
    )


def test_anytime():
    found = plan(error=0.03, examples=6000, tasks=10, anytime=True)
    share = bounds.anytime_log_delta(LOG, 10)
    assert found.row("holdout").bound == float(bounds.holdout_certificate(3000, 90, 10, share))


@pytest.mark.parametrize(("memory", "tasks"), [(20, 2), (2000, 5), (31_415, 7)])
def test_the_memory_keeps_what_the_kernel_keeps(memory, tasks):
    from cop2l.kernel.exact import threshold

    options = Options(memory=memory)
    n = 10**6
    found = plan(error=0.01, picks=0.01, examples=10**7, memory=memory, tasks=tasks)
    expected = int(float(threshold(n, tasks, options)) / 2.0**64 * n + 1e-6)
    assert found.row("preference", "gone").certify == expected


CASES = [
    {"error": 0.03, "target": 0.05, "tasks": 10, "picks": 0.004},
    {"error": 0.0, "target": 0.01},
    {"error": 0.2, "target": 0.25, "tasks": 40, "anytime": True},
    {"error": 0.07, "target": 0.3, "tasks": 3, "picks": 0.1},
    {"error": 0.0123, "target": 0.02, "tasks": 5, "delta": 0.3},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_fewer_misses_the_target(case):
    arguments = {key: value for key, value in case.items() if key != "target"}
    found = plan(**case)
    assert len(found.rows) == 1 + (case.get("tasks", 1) > 1) + 2 * ("picks" in case)
    for row in found.rows:
        assert row.bound <= case["target"]

        def bound(examples, memory, row=row):
            return plan(**arguments, examples=examples, memory=memory).row(row.kind, row.data).bound

        if row.data == "at hand":
            assert bound(row.examples, None) == row.bound
            assert bound(row.examples - 1, None) > case["target"]
        else:
            assert bound(row.examples, row.memory) == row.bound
            assert bound(row.examples, row.memory - 1) > case["target"]


def test_a_target_below_the_error_cannot_be_had():
    found = plan(error=0.05, target=0.05, tasks=2)
    assert all(row.bound is None and row.examples is None for row in found.rows)
    close = plan(error=0.05, target=0.0500001)
    assert close.row("holdout").bound is None


BAD = [
    ({}, "Give either the number of examples"),
    ({"examples": 10, "target": 0.1}, "Give either the number of examples"),
    ({"examples": 0}, "examples must be an integer from 1"),
    ({"examples": 10**10}, "at most 10"),
    ({"target": 1.0}, "target must be"),
    ({"target": 0.0}, "target above 0"),
    ({"examples": 10, "error": -1}, "error must be from 0"),
    ({"examples": 10, "error": "x"}, "error must be a number"),
    ({"examples": 10, "error": float("nan")}, "error must be a number"),
    ({"examples": 10, "tasks": 0}, "tasks must be"),
    ({"examples": 10, "delta": 0}, "delta and target above 0"),
    ({"examples": 10, "delta": 2}, "delta must be"),
    ({"examples": 10, "memory": 0}, "memory must be"),
    ({"examples": 10, "error": 0.6, "picks": 0.4}, "together must be below 1"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        plan(**({"error": 0.03} | arguments))


def test_the_command(capsys):
    arguments = ["plan", "--error", "0.03", "--target", "0.05", "--tasks", "10"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    result = plan(error=0.03, target=0.05, tasks=10)
    assert shown == f"{result}\n"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(result)))
    assert main(["plan", "--error", "0.03", "--examples", "-5"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_shows_what_the_command_prints(capsys):
    shown_blocks = blocks(sections("integrations.md")["Plan"], "console")
    assert len(shown_blocks) == 2
    for block in shown_blocks:
        command, shown = block.removeprefix("$ cop2l ").split("\n", 1)
        assert main(command.split()) == 0
        assert capsys.readouterr().out == shown
