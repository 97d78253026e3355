"""Presets, and the options as keywords."""

import typing
from collections.abc import Sequence

import pytest

from cop2l.errors import UserError
from cop2l.kernel.options import Options
from cop2l.learner.presets import PRESETS, OptionValues, options


def test_the_keywords_are_the_declared_options():
    declared, keywords = typing.get_type_hints(Options), typing.get_type_hints(OptionValues)
    assert list(keywords) == list(declared)
    for name, kind in declared.items():
        if typing.get_origin(kind) is tuple:
            assert keywords[name] == Sequence[typing.get_args(kind)[0]]
        else:
            assert keywords[name] == kind


@pytest.mark.long
def test_a_type_checker_refuses_a_misspelt_option(tmp_path):
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "spelling.py"
    calls = ["CoP2L(nn.Linear(2, 2), memory=500)", "CoP2L(nn.Linear(2, 2), memmory=500)"]
    file.write_text("\n".join(["from torch import nn", "from cop2l import CoP2L", *calls]))
    out, _, _ = api.run(["--ignore-missing-imports", "--follow-imports=silent", str(file)])
    errors = [line for line in out.splitlines() if "error:" in line]
    assert len(errors) == 1, out
    assert "spelling.py:4" in errors[0]
    assert "memmory" in errors[0]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_set_of_options(preset):
    chosen = options(preset, k=3)
    assert isinstance(chosen, Options)
    assert chosen.k == 3
    assert all(getattr(chosen, name) == value for name, value in PRESETS[preset].items() if name != "k")


def test_the_kind_follows_the_buffer_unless_it_is_named():
    assert options().kind == "preference"
    assert options("paper").kind == "kl"
    assert options("paper", buffer="threshold").kind == "preference"
    assert options("picking", buffer="uniform").kind == "kl"


def test_wrong_names_and_values_are_one_sentence():
    for changes in (
        {"memmory": 500},
        {"kind": "holdouts"},
        {"buffer": "uniform", "kind": "preference"},
        {"delta": 0.7},
    ):
        with pytest.raises(UserError) as refused:
            options("paper", **changes)
        assert str(refused.value).count("\n") == 0
    with pytest.raises(UserError, match="preset"):
        options("papers")
