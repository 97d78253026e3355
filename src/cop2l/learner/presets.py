"""The presets of CoP2L: named sets of options."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from cop2l.errors import unknown
from cop2l.kernel.options import Family, Kind, Options


class OptionValues(TypedDict, total=False):
    """The types of `Options`, again: type checkers read keyword arguments only from a TypedDict. A test compares the two."""

    memory: int
    k: int
    omega: float
    gamma: float
    epochs: int
    batch: int
    lr: float
    optimiser: Literal["sgd", "adam"]
    buffer: Literal["uniform", "threshold"]
    stop: Literal["kl", "preference", "none"]
    grid: bool
    max_iterations: int | None
    delta: float
    siblings: int
    seed: int
    kind: Kind
    claim: Sequence[Family]
    shares: Sequence[int]
    groups: Sequence[str]
    tasks: int | None


@dataclass(frozen=True)
class Choice:
    """The choice of a preset."""

    preset: Literal["picking", "paper"] = "picking"
    """The set of defaults: `picking` (its values are listed here), or `paper`: CoP2L as published."""


PRESETS: dict[str, dict[str, Any]] = {
    "picking": {
        "buffer": "threshold", "stop": "preference", "kind": "preference", "grid": True, "max_iterations": 1024,
    },
    "paper": {"buffer": "uniform", "stop": "kl", "kind": "kl"},
}  # fmt: skip


def options(preset: str = Choice.preset, **changes: Any) -> Options:
    """The options of a preset with changes.

    >>> options("paper", k=4).buffer
    'uniform'
    """
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    values = {**PRESETS[preset], **changes}
    names = {field.name for field in fields(Options)}
    for name in changes:
        if name not in names:
            raise unknown("option", name, names)
    if "kind" not in changes:
        values["kind"] = {"threshold": "preference", "uniform": "kl"}.get(
            str(values["buffer"]), values["kind"]
        )
    return Options(**values)
