"""`cop2l bound` prints what the library returns, and explains what it refuses."""

import json
import math
import re

import pytest

from cop2l import bounds
from cop2l.cli import main

LOG = math.log(0.05)
KL = "--n 10000 --compression 300 --evicted 20 --errors 100 --iterations 75,80,60,90,70 --task 2 --tasks 5 --delta 0.05"
KL_ARGUMENTS = (10_000, 300, 20, 100, [75, 80, 60, 90, 70], 2, 5)
OURS = "--n 10000 --picked 300 --errors-not-picked 120 --iterations 75 --tasks 5 --delta 0.05"
BUFFER = "--n-selected 10000 --compressed 420 --iterations 75 --tasks 5 --delta 0.05"
HOLDOUT = "--n 5000 --errors 150 --tasks 5 --delta 0.05"


def bound(capsys, line: str) -> str:
    assert main(["bound", *line.split()]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refusal(capsys, line: str) -> str:
    try:
        code = main(["bound", *line.split()])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("cop2l: ")
    assert captured.err.endswith(".\n")
    return captured.err


LINES = {
    f"kl {KL}": bounds.kl_certificate(*KL_ARGUMENTS, LOG),
    f"preference {OURS}": bounds.preference_certificate(10_000, 300, 120, 75, 5, LOG),
    f"buffer {BUFFER}": bounds.buffer_certificate(10_000, 420, 75, 5, LOG),
    f"holdout {HOLDOUT}": bounds.holdout_certificate(5000, 150, 5, LOG),
}


@pytest.mark.parametrize("line", LINES)
def test_json_holds_what_the_library_returns(capsys, line):
    record = json.loads(bound(capsys, f"{line} --json"))
    expected = LINES[line]
    assert record["bound"] == pytest.approx(expected.value, abs=1e-9)
    assert record["bound"] >= expected.value - 1e-15
    assert record["kind"] == line.split()[0] == expected.kind
    assert record["reason"] is None
    assert record["delta"] == 0.05
    assert record["terms"] == pytest.approx(expected.terms)


@pytest.mark.parametrize("line", LINES)
def test_anytime_uses_the_share_of_this_time(capsys, line):
    plain = json.loads(bound(capsys, f"{line} --json"))
    record = json.loads(bound(capsys, f"{line} --anytime --json"))
    assert record["anytime"]
    assert not plain["anytime"]
    assert record["bound"] > plain["bound"]
    shared = json.loads(bound(capsys, f"{line} --json --delta {0.05 * 6 / (25 * math.pi**2)!r}"))
    assert record["bound"] == pytest.approx(shared["bound"], abs=1e-9)


def test_the_sentence(capsys):
    first, *lines = bound(capsys, f"kl {KL}").splitlines()
    assert first == (
        "With probability at least 95 % over the draw of the data, the error rate on task 2 of 5 is at most 18.59 %."
    )
    text = "\n".join(lines)
    assert "ln C(n,|I|)" in text
    assert re.search(r"complement errors +100\n", text)
    assert re.search(r"complement size +9680\n", text)
    assert "all 5 tasks at once" in text
    assert "every time" in bound(capsys, f"kl {KL} --anytime")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("holdout --n 100 --errors 0 --delta 0.05", "the error rate is at most 2.96 %."),
        ("holdout --n 100 --errors 0 --tasks 4", "the error rate on this task, one of 4, is at most 4.29 %."),
        ("holdout --n 10 --errors 1 --delta 1e-30", "at most 99.97 %."),
    ],
)
def test_sentences_for_other_cases(capsys, line, sentence):
    assert sentence in bound(capsys, line).splitlines()[0]


def test_a_vacuous_bound_says_why(capsys):
    text = bound(capsys, "holdout --n 10 --errors 10")
    assert "at most 100.00 %" in text
    assert "says nothing: every example is picked or misclassified, so nothing supports a bound." in text
    record = json.loads(
        bound(capsys, "kl --n 10 --compression 10 --evicted 0 --errors 0 --iterations 3 --task 1 --json")
    )
    assert record["bound"] == 1.0
    assert "left" in record["reason"]


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("holdout")])
def test_a_grid_makes_the_choice_of_iterations_cheaper(capsys, line):
    line = line.replace("75,80,60,90,70", "64,96,64,96,64").replace("--iterations 75", "--iterations 64")
    plain = json.loads(bound(capsys, f"{line} --json"))
    record = json.loads(bound(capsys, f"{line} --grid 1024 --json"))
    assert record["grid"] == 1024
    assert plain["grid"] is None
    assert record["bound"] < plain["bound"]
    messages = 5 if record["kind"] == "kl" else 1
    assert record["terms"]["messages"] == pytest.approx(messages * math.log(21))


def test_a_number_of_iterations_outside_the_grid_is_refused(capsys):
    sentence = refusal(capsys, f"preference {OURS} --grid 100")
    assert "0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100, not 75" in sentence
    assert "grid" in refusal(capsys, f"preference {OURS} --grid -1")
    assert "--grid" in refusal(capsys, f"preference {OURS} --grid x")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("holdout --n 10 --errors 11", "errors"),
        ("holdout --n ten --errors 1", "--n"),
        ("holdout --n 10.0 --errors 1", "--n"),
        ("holdout --n 10 --errors 1 --delta 0", "delta"),
        ("holdout --n 10 --errors 1 --delta 1.5", "delta"),
        ("holdout --n 10 --errors 1 --delta -0.1", "delta"),
        ("holdout --n 10 --errors 1 --delta nan", "delta"),
        ("holdout --n 10 --errors 1 --delta five", "--delta"),
        ("preference --n 10 --picked 5 --errors-not-picked 1 --iterations 1,2", "--iterations"),
        (
            "kl --n 10 --compression 1 --evicted 0 --errors 1 --iterations 1,2 --task 1 --tasks 3",
            "iterations",
        ),
        (
            "kl --n 10 --compression 1 --evicted 0 --errors 1 --iterations 1,x --task 1 --tasks 2",
            "--iterations",
        ),
    ],
)
def test_wrong_numbers_get_one_sentence_that_names_them(capsys, line, word):
    assert word in refusal(capsys, line)
