"""The calculator: what it prints is what the library returns, and what it refuses it explains."""

import json
import math
import re

import pytest

from cop2l import bounds
from cop2l.certify.bounding import statements
from cop2l.cli import main
from cop2l.kernel.options import Options

LOG = math.log(0.05)
KL = "--n 10000 --compression 300 --evicted 20 --errors 100 --iterations 75,80,60,90,70 --task 2 --tasks 5 --delta 0.05"
TIGHT = KL.replace("--compression 300 --evicted 20", "--compression 320")
KL_ARGUMENTS = (10_000, 300, 20, 100, [75, 80, 60, 90, 70], 2, 5)
OURS = "--n 10000 --compression 300 --errors 120 --iterations 75 --tasks 5 --delta 0.05"
HOLDOUT = "--n 5000 --errors 150 --tasks 5 --delta 0.05"


def bound(capsys, line: str) -> str:
    assert main(["bound", *line.split()]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refusal(capsys, line: str) -> str:
    assert main(["bound", *line.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("cop2l: ")
    assert captured.err.endswith(".\n")
    return captured.err


LINES = {
    f"kl {KL}": bounds.kl_certificate(*KL_ARGUMENTS, LOG),
    f"kl-tight {TIGHT}": bounds.kl_tight_certificate(10_000, 320, *KL_ARGUMENTS[3:], LOG),
    f"preference {OURS}": bounds.preference_certificate(10_000, 300, 120, 75, 5, LOG),
    f"combined {OURS}": bounds.combined_certificate(10_000, 300, 120, 75, 5, LOG),
    f"buffer {OURS}": bounds.buffer_certificate(10_000, 420, 75, 5, LOG),
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
    assert record["anytime_log_delta"] == pytest.approx(LOG + math.log(6 / (25 * math.pi**2)))


def test_the_sentence(capsys):
    first, *rest = bound(capsys, f"kl {KL}").splitlines()
    assert first == (
        "With probability at least 95 % over the draw of the data, the error rate on task 2 of 5 is at most 18.59 %."
    )
    text = "\n".join(rest)
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
        (
            "preference --n 100 --compression 0 --errors 1 --iterations 0 --task 1 --tasks 4",
            "on task 1 of 4 is at most",
        ),
        ("holdout --n 10 --errors 1 --delta 1e-30", "at least 1 - 1e-30 over"),
        ("holdout --n 10 --errors 1 --delta 1e-30", "at most 99.97 %."),
        ("holdout --n 10 --errors 1 --delta 0.001", "at least 99.9 % over"),
        ("holdout --n 10 --errors 1 --delta 1", "at least 0 % over"),
    ],
)
def test_sentences_for_other_cases(capsys, line, sentence):
    assert sentence in bound(capsys, line).splitlines()[0]


def test_printed_percentages_are_rounded_up(capsys):
    for n in (7, 40, 333, 5000, 10**6):
        line = f"holdout --n {n} --errors {n // 10}"
        value = json.loads(bound(capsys, f"{line} --json"))["bound"]
        percent = float(re.search(r"at most ([0-9.]+) %", bound(capsys, line)).group(1))
        assert value <= percent / 100 <= value * 1.01 + 1e-12


def test_a_vacuous_bound_says_why(capsys):
    text = bound(capsys, "holdout --n 10 --errors 10")
    assert "at most 100.00 %" in text
    assert "says nothing: every withheld example is misclassified." in text
    record = json.loads(bound(capsys, "kl --n 10 --compression 10 --errors 0 --iterations 3 --task 1 --json"))
    assert record["bound"] == 1.0
    assert "left" in record["reason"]


def test_delta_may_be_smaller_than_any_float(capsys):
    record = json.loads(bound(capsys, "holdout --n 100000 --errors 10 --delta 1e-4000 --json"))
    expected = bounds.holdout_certificate(100_000, 10, 1, -4000 * math.log(10)).value
    assert record["bound"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("holdout")])
def test_a_grid_makes_the_choice_of_iterations_cheaper(capsys, line):
    line = line.replace("75,80,60,90,70", "64,96,64,96,64").replace("--iterations 75", "--iterations 64")
    plain = json.loads(bound(capsys, f"{line} --json"))
    record = json.loads(bound(capsys, f"{line} --grid 1024 --json"))
    assert record["grid"] == 1024
    assert plain["grid"] is None
    assert record["bound"] < plain["bound"]
    each = {"kl": 5, "kl-tight": 4}.get(record["kind"], 1)
    values = 20 if record["kind"] == "combined" else 21  # without 0, which has three quarters of delta
    assert record["terms"]["messages"] == pytest.approx(each * math.log(values))


def test_a_number_of_iterations_outside_the_grid_is_refused(capsys):
    sentence = refusal(capsys, f"preference {OURS} --grid 100")
    assert "0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100, not 75" in sentence
    assert "--grid" in refusal(capsys, f"preference {OURS} --grid -1")
    assert "--grid" in refusal(capsys, f"preference {OURS} --grid x")


FAMILIES = {
    "average --n 500,500 --errors 80,120": bounds.pooled_certificate([(500, 80), (500, 120)], LOG),
    "average --n 500,400 --errors 80,120 --combined --tasks 5": bounds.pooled_certificate(
        [(500, 80), (400, 120)], LOG + bounds.log_set_weight(5, 2)
    ),
    "forgetting --n 1000 --lost 20 --tasks 5": bounds.holdout_certificate(1000, 20, 10, LOG),
    "forgetting --n 1000 --lost 20 --compression 30 --iterations 4 --tasks 5": bounds.preference_certificate(
        1000, 30, 20, 4, 5, LOG
    ),
    "forgetting --n 1000 --lost 20 --compression 30 --iterations 4 --combined --grid 16": bounds.combined_certificate(
        1000, 30, 20, 4, 1, LOG, grid=9
    ),
    "group --n 200 --errors 12 --groups 7 --tasks 5": bounds.holdout_certificate(200, 12, 35, LOG),
    "group --n 200 --errors 12 --groups 7 --compression 9 --iterations 3": bounds.preference_certificate(
        200, 9, 12, 3, 7, LOG
    ),
}


@pytest.mark.parametrize("line", FAMILIES)
def test_families_are_what_the_library_returns(capsys, line):
    record = json.loads(bound(capsys, f"{line} --json"))
    assert record["bound"] == pytest.approx(FAMILIES[line].value, abs=1e-11)
    assert record["kind"] == line.split()[0]
    part = json.loads(bound(capsys, f"{line} --share 1/5 --json"))
    same = json.loads(bound(capsys, f"{line} --delta 0.01 --json"))
    assert part["share"] == "1/5"
    assert part["bound"] == pytest.approx(same["bound"], abs=1e-12)
    assert json.loads(bound(capsys, f"{line} --anytime --json"))["bound"] > record["bound"]


def test_families_are_what_a_certificate_states(capsys):
    """The same counts through `statements`, which the kernel checks: two tasks without picks, everything claimed."""
    counted = {
        "prior": 0, "compression": 0, "evicted": 0, "picked": 0, "iterations": 0, "stopped": 0,
        "selected": 0, "compressed": 0,
    }  # fmt: skip

    def part(n, errors, **more):
        return {**counted, "n": n, "errors": errors, "missed": errors, **more}

    parts = [part(300, 30, family="groups", subject="a"), part(0, 0, family="groups", subject="b")]
    changed = [
        part(300, 9, family="forgetting", subject="lost"),
        part(300, 20, family="forgetting", subject="gained"),
    ]
    records = [part(300, 30, task=1, parts=[*parts, *changed]), part(300, 30, task=2, parts=parts)]
    claim = ("tasks", "average", "forgetting", "groups")
    options = Options(kind="combined", buffer="witness", claim=claim, groups=("a", "b"), tasks=2)
    stated = {(s["family"], s["task"], s["subject"]): s["value"] for s in statements(options, records)}
    same = "--combined --tasks 2 --share 1/4 --json"
    lines = {
        ("average", None, None): "average --n 300,300 --errors 30,30",
        ("forgetting", 1, "lost"): "forgetting --n 300 --lost 9 --gained 20 --iterations 0",
        ("groups", 1, "a"): "group --n 300 --errors 30 --groups 1 --iterations 0",
    }
    found = {key: json.loads(bound(capsys, f"{line} {same}")) for key, line in lines.items()}
    for key, record in found.items():
        assert record["bound"] == pytest.approx(stated[key], abs=1e-11)
    assert found["forgetting", 1, "lost"]["net"] == pytest.approx(stated["forgetting", 1, "net"], abs=1e-11)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("average --n 500,500 --errors 80,120", "averaged over the 2 tasks is at most 22.20 %."),
        (
            "average --n 9,8 --errors 1,2 --combined --tasks 3",
            "averaged over the 2 tasks without picks, of 3, weighted by examples, is at most",
        ),
        (
            "forgetting --n 1000 --lost 20 --tasks 5",
            "at most 3.45 % of this task, one of 5, was right when it was learned and is wrong now.",
        ),
        (
            "group --n 200 --errors 12 --groups 10 --task 2 --tasks 5",
            "of this group on task 2 of 5 at most 13.02 %",
        ),
    ],
)
def test_the_sentences_of_families(capsys, line, sentence):
    assert sentence in bound(capsys, line).splitlines()[0]


def test_what_was_lost_and_the_net_are_said_together(capsys):
    text = bound(capsys, "forgetting --n 1000 --lost 20 --gained 50 --share 1/5")
    assert "At once, the error rate rose by at most" in text
    assert "1/5 of delta" in text
    assert "rose" not in bound(capsys, "forgetting --n 1000 --lost 20")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("average --n 10,10 --errors 1", "as many"),
        ("average --n 10,x --errors 1,1", "--n"),
        ("average --n 10 --errors 11", "errors"),
        ("average --n 10 --errors 1 --tasks 2", "--tasks"),
        ("average --n 10,10 --errors 1,1 --tasks 1 --combined", "--tasks"),
        ("forgetting --n 10 --lost 11", "--lost"),
        ("group --n 10 --errors 3 --groups 2 --compression 20 --iterations 3", "--compression"),
        ("combined --n 10 --compression 3 --errors 1 --iterations 0", "--compression must be 0"),
        ("forgetting --n 10 --lost 1 --gained 10", "--gained"),
        ("forgetting --n 10 --lost 1 --gained 1 --iterations 2", "--gained"),
        ("forgetting --n 10 --lost 1 --compression 2", "--iterations"),
        ("group --n 10 --errors 1 --groups 0", "--groups"),
        ("group --n 10 --errors 1 --groups 2 --share 0", "--share"),
        ("group --n 10 --errors 1 --groups 2 --share 6/5", "--share"),
        ("holdout --n 10 --errors 1 --share 1/0", "--share"),
        ("holdout --n 10 --errors 11", "errors"),
        ("holdout --n 10 --errors -1", "errors"),
        ("holdout --n ten --errors 1", "--n"),
        ("holdout --n 10.0 --errors 1", "--n"),
        ("holdout --n nan --errors 1", "--n"),
        ("holdout --n 10 --errors 1 --delta 0", "--delta"),
        ("holdout --n 10 --errors 1 --delta 1.5", "--delta"),
        ("holdout --n 10 --errors 1 --delta -0.1", "--delta"),
        ("holdout --n 10 --errors 1 --delta nan", "--delta"),
        ("holdout --n 10 --errors 1 --delta five", "--delta"),
        ("holdout --n 10 --errors 1 --tasks 0", "tasks"),
        ("holdout --n 10 --errors 1 --task 3 --tasks 2", "--task"),
        ("preference --n 10 --compression 11 --errors 0 --iterations 1", "--compression"),
        ("preference --n 10 --compression 5 --errors 6 --iterations 1", "--errors"),
        ("preference --n 10 --compression 5 --errors 1 --iterations 1,2", "--iterations"),
        ("kl --n 10 --compression 1 --errors 1 --iterations 1,2 --task 1 --tasks 3", "iterations"),
        ("kl --n 10 --compression 1 --errors 1 --iterations 1,x --task 1 --tasks 2", "--iterations"),
        ("kl --n 10 --compression 1 --errors 1 --iterations 1,2 --task 3 --tasks 2", "--task"),
        ("kl --n 10 --compression 1 --evicted 1 --errors 1 --iterations 1 --task 1", "evicted"),
        ("kl-tight --n 10 --compression 11 --errors 1 --iterations 1 --task 1", "compression"),
    ],
)
def test_wrong_numbers_get_one_sentence_that_names_them(capsys, line, word):
    assert word in refusal(capsys, line)


@pytest.mark.parametrize(
    "line", ["kl --n 10", "holdout", "", "unknown --n 10", "holdout --n 10 --errors 1 --task"]
)
def test_a_wrong_command_line_exits_with_2(capsys, line):
    try:
        code = main(["bound", *line.split()])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err
