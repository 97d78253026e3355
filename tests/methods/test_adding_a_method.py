"""The worked example of docs/methods.md, executed and put through the contract."""

import re
from pathlib import Path

import pytest
import test_methods_contract as contract

from cop2l.methods import METHODS
from cop2l.streams.task import SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """The page's two pieces of Python; the first is a registered method."""
    text = PAGE.read_text()
    method, use = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (name,) = re.findall(r"`src/cop2l/methods/(\w+)\.py`", text)
    (tmp_path / f"{name}.py").write_text(method)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, name, name)
    monkeypatch.setattr(contract, "FORGETS", contract.FORGETS | {"anchored"})
    return method, use


def test_the_example_runs(blocks):
    exec(compile(blocks[1], str(PAGE), "exec"), {})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_example_keeps_the_contract(blocks, scenario, tmp_path):
    tests = contract.TestContract()
    tests.test_learns_a_separable_stream("anchored", scenario)
    tests.test_same_seed_same_bits_and_nothing_outside_changes("anchored", scenario)
    tests.test_memory_stays_within_its_budget("anchored", scenario)
    tests.test_save_load_continue_is_uninterrupted("anchored", scenario, tmp_path)
    tests.test_progress_is_reported("anchored", scenario)
