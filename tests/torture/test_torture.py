"""A small part of the torture, and that its recorded page is the one that its results give."""

import json
import re
import sys
from itertools import islice
from pathlib import Path

import pytest
from attacks import ATTACKS, LIE, OUTSIDE
from torture_files import data_file, hostile_files
from torture_judge import Case, judge
from torture_mutations import Tally, forged
from torture_runs import AUDITOR, RUNS, hostile_runs

import torture
from cop2l.cli import main

FORGERIES, FILES, SOME = 200, 8, 16


def test_forgeries(honest, tmp_path):
    assert all(base.audit(base.folders).status == "valid" for base in honest.values())
    tally = Tally()
    for number in range(FORGERIES):
        tally.add(number, 1, honest, tmp_path)
    assert not tally.broken, "\n".join(tally.broken)
    found = {status for _, status in tally.results}
    assert {"invalid", "cannot tell", "valid"} <= found, found


def test_a_broken_kernel_would_be_seen(honest, tmp_path, monkeypatch):
    from cop2l.kernel import checking

    monkeypatch.setattr(checking, "bound_follows", lambda *_: True)
    tally = Tally()
    lies = (number for number in range(2000) if "stated bounds" in forged(number, 1, honest)[0].what)
    for number in islice(lies, 24):
        tally.add(number, 1, honest, tmp_path)
    assert any("a smaller bound" in line for line in tally.broken)


UNIX_ONLY = pytest.mark.skipif(
    sys.platform == "win32", reason="needs processes that are copies, FIFOs and links"
)


ATTACKED = ("cop2l, task-incremental, fixed", "all claims, picks, fixed")


@UNIX_ONLY
@pytest.mark.parametrize("name", ATTACKED)
def test_hostile_files(name, honest, tmp_path):
    base = honest[name]
    cases = hostile_files(base, data_file(base, tmp_path / "data.npz"))
    assert len(cases) > 400
    honest_case = Case("honest", name, lambda _: base.folders[-1], cases[0].arguments, harmless=True)
    assert judge([honest_case], tmp_path / "honest")[0][1].code == 0
    found = judge(cases[:: len(cases) // FILES], tmp_path / "cases", busy=True)
    broken = [f"{case.kind}: {case.name[:100]}: {result.invalid}" for case, result in found if result.invalid]
    assert not broken, "\n".join(broken)


@UNIX_ONLY
def test_hostile_runs(runs, tmp_path):
    for name in RUNS:  # as they are, they are valid: an attack is refused for what it changes
        honest = Case("honest", name, lambda _, name=name: runs / name / "0", AUDITOR, harmless=True)
        ((_, result),) = judge([honest], tmp_path / name)
        assert result.code == 0, result.output
    found = judge(list(hostile_runs(runs, SOME, 1)), tmp_path / "cases", busy=True)
    broken = [f"{case.kind}: {case.name[:200]}: {result.invalid}" for case, result in found if result.invalid]
    assert not broken, "\n".join(broken)


SLOW = (
    "tolerated_repeats", "clamp_copies", "integer_copies_in_half", "batch_mean", "ground_columns", "ordered_rows",
    "multiples_of_rows", "exchanged", "planted_random", "planted_packages", "planted_beside", "sparse_parameters", "many_folders",
)  # fmt: skip
"""Attacks that take long, or need a process of their own: `make torture` has them too."""


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in SLOW])
def test_attacks(name, tmp_path, monkeypatch, capsys):
    words, *_ = ATTACKS[name][1](tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *words.split()]) or name in OUTSIDE
    assert not any(
        LIE in re.sub(r'"(\\.|[^"\\])*"', "", line) for line in capsys.readouterr().out.splitlines()
    )


def test_the_page_is_made_from_the_results():
    results = json.loads(Path(torture.RESULTS).read_text())
    assert set(results) == {*torture.PARTS, "attacks"}
    assert not any(results[part]["broken"] for part in torture.PARTS)
    assert all(row["after"] or name in OUTSIDE for name, row in results["attacks"].items())
    assert torture.PAGE.read_text() == torture.page(results)
