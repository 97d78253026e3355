"""Predicts which bound to expect, and how much data and memory a target needs."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cop2l import bounds
from cop2l.bounds.checks import count, real
from cop2l.errors import UserError
from cop2l.kernel.options import grid_points
from cop2l.learner.presets import PRESETS
from cop2l.text import confidence, exact_percent, percent

LARGEST = 10**9
"""The most examples or memory to plan with."""
HOLDOUT = Fraction(1, 2)
"""The share that a hold-out certificate withholds of each task."""
END = "Counts are the expected ones; those of a real sample scatter around them, and the bound with them."


@dataclass(frozen=True)
class Row:
    """The plan for one kind of certificate. None: not requested, or no number up to 10^9 is enough."""

    kind: str
    data: str
    """`at hand`: the data of the task is read once more to certify; `gone`: only what is kept of it is left."""
    examples: int | None
    """The number of examples of each task."""
    certify: int | None
    """The number of them that the bound is counted on."""
    memory: int | None
    """m, the number of examples that the memory may hold."""
    bound: float | None
    """The bound at the expected counts."""


@dataclass(frozen=True)
class Plan:
    """The question, and a row for each kind of certificate."""

    question: dict[str, Any]
    rows: tuple[Row, ...]

    def row(self, kind: str, data: str = "at hand") -> Row:
        """The row of a kind."""
        return {(row.kind, row.data): row for row in self.rows}[kind, data]

    def __str__(self) -> str:
        table = [("kind", "its data", "examples", "certify", "memory", "error <=")]
        for row in self.rows:
            numbers = (row.examples, row.certify, row.memory)
            n, certify, memory = ("-" if size is None else f"{size:,}".replace(",", " ") for size in numbers)
            bound = "-" if row.bound is None else percent(row.bound)
            table.append((row.kind, row.data, n, certify, memory, bound))
        lines = ["{:<11}{:<9} {:>10} {:>10} {:>10} {:>9}".format(*cells) for cells in table]
        tasks, delta, error = (self.question[name] for name in ("tasks", "delta", "error"))
        when = "after any task" if self.question["anytime"] else "after the last of a fixed number"
        subject = f"all {tasks} tasks at once, {when}" if tasks > 1 else "one task"
        chance = f"with probability at least {confidence(delta)}"
        return "\n".join(
            [*lines, "", f"For {subject}, {chance}, at an error rate of {exact_percent(error)}.", END]
        )


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
    """The bounds to expect from a number of examples, or the examples and memory that a target needs.

    The bounds are those of `cop2l.bounds` at the expected counts; the counts of a real sample scatter around these.

    Args:
        error: The error rate that you expect on new examples.
        examples: The number of examples of each task; give it, or a target.
        target: The bound to reach.
        memory: The number of examples of past tasks that may be kept; for a hold-out, of their withheld rows (`keep_withheld`).
        tasks: The number of tasks, all certified at once.
        delta: The probability that a certificate may fail.
        anytime: Whether there is a certificate after every task.
        picks: The share of a task's examples that will be picked; the kind preference needs it.

    >>> round(plan(error=0.03, examples=10_000, tasks=10).row("holdout").bound, 4)
    0.0368
    """
    question: dict[str, Any] = {"error": error, "target": target, "delta": delta, "picks": picks}
    for name, value in question.items():
        if value is not None and not 0 <= real(name, value) < 1:
            raise UserError(f"{name} must be from 0 to below 1, for example 0.05, not {value}.")
    sizes = {"examples": examples, "memory": memory, "tasks": tasks}
    for name, size in sizes.items():
        if size is not None and count(name, size, least=1) > LARGEST:
            raise UserError(f"{name} must be at most 10^9, not {size}.")
    if (examples is None) == (target is None):
        raise UserError(
            "Give either the number of examples of each task, such as 5000, or a target, such as 0.05."
        )
    if error + picks >= 1 or delta == 0 or target == 0:
        raise UserError("error and picks together must be below 1, and delta and target above 0.")
    question |= sizes | {"anytime": anytime}
    kinds = [("holdout", True), *[("holdout", False)] * (tasks > 1)]
    kinds += [("preference", True), ("preference", False)] * (picks > 0)
    possible = [(kind, has_data) for kind, has_data in kinds if target or memory or has_data]
    return Plan(question, tuple(_row(question, kind, has_data) for kind, has_data in possible))


def _row(question: dict[str, Any], kind: str, has_data: bool) -> Row:
    """The row of a kind; a hold-out certificate withholds half of each task."""
    grid = len(grid_points(PRESETS["picking"]["max_iterations"]))
    picks = Fraction(repr(question["picks"] if kind == "preference" else 0.0))
    rate, tasks, target = Fraction(repr(question["error"])) + picks, question["tasks"], question["target"]
    log_delta, data = math.log(question["delta"]), "at hand" if has_data else "gone"
    if question["anytime"]:
        log_delta = bounds.anytime_log_delta(log_delta, tasks)

    def certified(examples: int) -> int:
        return int(HOLDOUT * examples) if kind == "holdout" else examples

    def in_memory(memory: int) -> int:
        """The expected number of examples of a task in the memory: of a hold-out, or m'/T, as the thresholds are set."""
        if kind == "holdout":
            return int(memory // (tasks - 1))
        a = memory + 1
        return int(max(0.0, a - math.sqrt(9.22 * a)) / tasks)

    def bound(n: int) -> float:
        """The bound at the expected counts of n examples."""
        compressed, picked = math.ceil(rate * n), math.ceil(picks * n)
        if kind == "holdout":
            return float(bounds.holdout_certificate(n, compressed, tasks, log_delta))
        kept_iterations = int(picked > 0)  # on a grid every number of iterations but 0 costs the same
        if kind == "preference" and not has_data:
            return float(
                bounds.buffer_certificate(n, compressed, kept_iterations, tasks, log_delta, grid=grid)
            )
        errors = compressed - picked
        return float(
            bounds.preference_certificate(n, picked, errors, kept_iterations, tasks, log_delta, grid=grid)
        )

    if target is None:
        n, memory = certified(question["examples"]), None if has_data else question["memory"]
        n = n if memory is None else min(n, in_memory(memory))
        return Row(kind, data, question["examples"], n, memory, bound(n))
    needed = _least(lambda n: bound(n) <= target) if rate < Fraction(repr(target)) else None
    if needed is None:
        return Row(kind, data, None, None, None, None)
    examples = _least(lambda examples: certified(examples) >= needed)
    memory = None if has_data else _least(lambda memory: in_memory(memory) >= needed)
    return Row(kind, data, examples, needed, memory, bound(needed))


def _least(is_enough: Callable[[int], bool]) -> int | None:
    """A number that is enough, while the one before it is not; None if 10^9 is not enough.

    Expected counts are rounded up, so that bounds are not quite monotone: a smaller number may be enough, too.
    """
    sizes = [*(2**power for power in range(30)), LARGEST]
    enough = next((size for size in sizes if is_enough(size)), None)
    return enough and bisect_left(range(enough), True, lo=enough // 2 + 1, key=is_enough)
