"""Before the data is bought: which bound to expect, and how much data and memory a target needs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cop2l import bounds
from cop2l.bounds.checks import count, real
from cop2l.certify.presets import PRESETS
from cop2l.errors import UserError
from cop2l.kernel.options import grid_points
from cop2l.text import confidence, percent

LARGEST = 10**9
"""More examples or memory than this are not planned with."""
PRESET_OF = {"combined": "hybrid", "preference": "picking"}
END = "Counts are the expected ones; those of a real sample scatter around them, and the bound with them."


@dataclass(frozen=True)
class Row:
    """One kind of certificate. None: not asked for, or no number up to 10^9 is enough."""

    kind: str
    data: str
    """`at hand`: the task's own data is read once more; `gone`: only the memory is left."""
    examples: int | None
    """Examples of each task."""
    certify: int | None
    """How many of them the bound is counted on."""
    memory: int | None
    """m: how many examples the memory may hold."""
    bound: float | None
    """What to expect, if the counts are as expected."""


@dataclass(frozen=True)
class Plan:
    """What was asked, and a row for each kind of certificate."""

    asked: dict[str, Any]
    rows: tuple[Row, ...]

    def row(self, kind: str, data: str = "at hand") -> Row:
        """The row of a kind."""
        return {(row.kind, row.data): row for row in self.rows}[kind, data]

    def __str__(self) -> str:
        lines = [f"{'kind':<11}{'its data':<9}{'examples':>11}{'certify':>11}{'memory':>11}{'error <=':>10}"]
        for row in self.rows:
            numbers = (row.examples, row.certify, row.memory)
            cells = ["-" if value is None else f"{value:,}".replace(",", " ") for value in numbers]
            bound = "-" if row.bound is None else percent(row.bound)
            lines.append(
                f"{row.kind:<11}{row.data:<9}" + "".join(f"{cell:>11}" for cell in cells) + f"{bound:>10}"
            )
        tasks, delta, error = (self.asked[name] for name in ("tasks", "delta", "error"))
        times = "after any task" if self.asked["anytime"] else "after the last of a fixed number"
        whole = f"all {tasks} tasks at once, {times}" if tasks > 1 else "one task"
        sure = f"with probability at least {confidence(delta)}"
        return "\n".join([*lines, "", f"For {whole}, {sure}, at an error rate of {100 * error:g} %.", END])


def plan(
    *,
    error: float,
    examples: int | None = None,
    target: float | None = None,
    memory: int | None = None,
    tasks: int = 1,
    delta: float = 0.05,
    anytime: bool = False,
    picks: float = 0.0,
) -> Plan:
    """Which bound to expect from so many examples of each task or, with a target, what is needed for it.

    error: the error rate that you expect on new examples. memory: how many examples of the past may be kept. tasks: how many,
    all certified at once; anytime: a certificate after every task. picks: the share of a task's examples that will be picked
    (the kind preference needs it).

    The bounds are those of `cop2l.bounds` at the expected counts; the counts of a real sample scatter around these.

    >>> round(plan(error=0.03, examples=10_000, tasks=10).row("holdout").bound, 4)
    0.0368
    """
    asked: dict[str, Any] = {"error": error, "target": target, "delta": delta, "picks": picks}
    for name, value in asked.items():
        if value is not None and not 0 <= real(name, value) < 1:
            raise UserError(f"{name} must be from 0 to below 1, for example 0.05, not {value}.")
    sizes = {"examples": examples, "memory": memory, "tasks": tasks}
    for name, size in sizes.items():
        if size is not None and count(name, size, least=1) > LARGEST:
            raise UserError(f"{name} must be at most 10^9, not {size}.")
    if (examples is None) == (target is None):
        raise UserError(
            "Say how many examples each task has, such as 5000, or which target is wanted, such as 0.05."
        )
    if error + picks >= 1 or delta == 0 or target == 0:
        raise UserError("error and picks together must be below 1, and delta and target above 0.")
    asked |= sizes | {"anytime": anytime}
    kinds = [("holdout", False), ("combined", False), ("combined", True)]
    kinds += [("preference", False), ("preference", True)] * (picks > 0)
    possible = [(kind, gone) for kind, gone in kinds if target or memory or not gone]
    return Plan(asked, tuple(_row(asked, kind, gone) for kind, gone in possible))


def _row(asked: dict[str, Any], kind: str, gone: bool) -> Row:
    """The row of a kind with the shares that its preset has; a hold-out is half of each task."""
    preset = PRESETS[PRESET_OF[kind]] if kind in PRESET_OF else {"prior": 0.5}
    prior, prior_memory = Fraction(repr(preset.get("prior", 0.0))), preset.get("prior_memory", 0.0)
    grid = len(grid_points(preset.get("max_iterations", 0)))
    picks = Fraction(repr(asked["picks"] if kind == "preference" else 0.0))
    rate, tasks, target = Fraction(repr(asked["error"])) + picks, asked["tasks"], asked["target"]
    log_delta, data = math.log(asked["delta"]), "gone" if gone else "at hand"
    if asked["anytime"]:
        log_delta = bounds.anytime_log_delta(log_delta, tasks)

    def certified(examples: int) -> int:
        return examples - int(prior * examples)

    def kept(memory: int) -> int:
        """How many examples of a task the memory is expected to hold for counting: m'/T, as the thresholds are set."""
        a = memory - (round(prior_memory * memory) if prior else 0) + 1
        return int(max(0.0, a - math.sqrt(9.22 * a)) / tasks)

    def bound(n: int) -> float:
        """The bound at the expected counts, n of a task's examples being counted on."""
        compressed, picked = math.ceil(rate * n), math.ceil(picks * n)
        if kind == "holdout":
            return float(bounds.holdout_certificate(n, compressed, tasks, log_delta))
        kept_iterations = int(picked > 0)  # on a grid every number of iterations but 0 costs the same
        if kind == "preference" and gone:
            return float(
                bounds.buffer_certificate(n, compressed, kept_iterations, tasks, log_delta, grid=grid)
            )
        certificate = bounds.combined_certificate if kind == "combined" else bounds.preference_certificate
        return float(
            certificate(n, picked, compressed - picked, kept_iterations, tasks, log_delta, grid=grid)
        )

    if target is None:
        n = certified(asked["examples"])
        n = min(n, kept(asked["memory"])) if gone else n
        return Row(kind, data, asked["examples"], n, asked["memory"] if gone else None, bound(n))
    needed = _least_good(lambda n: bound(n) <= target) if rate < Fraction(repr(target)) else None
    if needed is None:
        return Row(kind, data, None, None, None, None)
    examples = _least_good(lambda examples: certified(examples) >= needed)
    memory = _least_good(lambda memory: kept(memory) >= needed) if gone else None
    return Row(kind, data, examples, needed, memory, bound(needed))


def _least_good(good: Callable[[int], bool]) -> int | None:
    """The end of a bisection: a number that is good while the one before it is not; None: not even 10^9 is good.

    Expected counts are rounded up, so that a bound is not quite monotone: a smaller number may be good, too.
    """
    low, high = 0, 1
    while not good(high):
        if high == LARGEST:
            return None
        low, high = high, min(2 * high, LARGEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
