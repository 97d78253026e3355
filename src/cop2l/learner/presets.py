"""The presets of CoP2L: named sets of options."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from cop2l.errors import UserError, unknown
from cop2l.kernel.options import Family, Kind, Options


class OptionValues(TypedDict, total=False):
    """The types of `Options`, again: type checkers read keyword arguments only from a TypedDict. A test compares the two."""

    memory: int
    k: int
    omega: float
    pick_omega: float | None
    gamma: float
    epochs: int
    batch: int
    lr: float
    optimiser: Literal["sgd", "momentum", "adam"]
    buffer: Literal["uniform", "threshold", "count-only"]
    stop: Literal["kl", "preference", "combined", "none"]
    grid: bool
    max_iterations: int | None
    prior: float
    prior_memory: float
    prior_epochs: int | None
    prior_lr: float | None
    balance: bool
    start: Literal["weights", "slda"]
    shrinkage: float
    ridge: float
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

    preset: Literal["default", "picking", "hybrid", "paper"] = "default"
    """The set of defaults: `default` (its values are listed here) learns half of each task, with replay, and certifies by the
    other half; `hybrid` also picks where that pays; `picking` picks from all examples; `paper` is CoP2L as published."""


PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "buffer": "count-only", "stop": "combined", "kind": "combined",
        "prior": 0.5, "prior_memory": 0.9, "prior_epochs": None, "prior_lr": None, "balance": False,
        "optimiser": "adam", "lr": 0.001, "batch": 64, "max_iterations": 0, "grid": True,
    },
    "picking": {
        "buffer": "threshold", "stop": "preference", "kind": "preference", "prior": 0.0, "grid": True, "max_iterations": 1024,
    },
    "hybrid": {
        "buffer": "count-only", "stop": "combined", "kind": "combined",
        "prior": 0.6, "prior_memory": 0.9, "prior_epochs": 20, "prior_lr": 0.05,
        "k": 16, "epochs": 1, "batch": 64, "lr": 0.005, "max_iterations": 20, "grid": True,
    },
    "paper": {"buffer": "uniform", "stop": "kl", "kind": "kl"},
}  # fmt: skip
"""docs/tutorial.md says when to choose which preset; reproduction/tables.md has the search that led to `hybrid`."""


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
    if preset in ("default", "hybrid") and values["prior"] == 0:
        raise UserError(f"The preset {preset!r} needs prior examples; for prior=0 use preset='picking'.")
    if "kind" not in changes:
        kinds = {"count-only": "combined", "threshold": "preference"}
        values["kind"] = kinds.get(str(values["buffer"]), values["kind"])
        if values["kind"] in ("preference", "combined") and values["buffer"] == "uniform":
            values["kind"] = "kl-tight"
    return Options(**values)
