"""Checks of arguments: a wrong value is refused in one sentence that names the argument."""

import math
from collections.abc import Sequence
from numbers import Real
from operator import index
from typing import Any

import numpy as np

from cop2l.errors import UserError

LARGEST = 10**12  # the rounding margins of this package hold for counts up to this


def count(name: str, value: Any, least: int = 0) -> int:
    """`value` as an int of at least `least`; bools and floats are refused."""
    if isinstance(value, bool | np.bool_):
        raise UserError(f"{name} must be an integer, not the truth value {value}.")
    try:
        number = index(value)
    except TypeError:
        raise UserError(f"{name} must be an integer, not {value!r}.") from None
    if not least <= number <= LARGEST:
        raise UserError(f"{name} must be an integer from {least} to 10^12, not {number}.")
    return number


def within(name: str, value: Any, limit_name: str, limit: int) -> int:
    """`value` as a count of at most `limit`."""
    number = count(name, value)
    if number > limit:
        raise UserError(f"{name} must be at most {limit_name} = {limit}, not {number}.")
    return number


def counts(name: str, values: Any) -> tuple[int, ...]:
    """`values` as counts."""
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise UserError(f"{name} must be a sequence of integers, not {values!r}.")
    if {*map(type, values)} == {int} and min(values) >= 0 and max(values) <= LARGEST:
        return tuple(values)  # the usual case, quickly: a certificate of T tasks asks T times
    return tuple(count(name, value) for value in values)


def task_of(task: Any, tasks: Any) -> tuple[int, int]:
    """Task t of T, counted from 1."""
    T = count("tasks", tasks, least=1)
    t = count("task", task, least=1)
    if t > T:
        raise UserError(f"task must be at most tasks = {T}, not {t}.")
    return t, T


def points(grid: Any, *iterations: int) -> int | None:
    """The number N of points of a declared grid, or None; a grid of one point has 0 iterations only."""
    if grid is None:
        return None
    N = count("grid", grid, least=1)
    if N == 1 and any(iterations):
        raise UserError("grid must have at least 2 points where iterations were kept, not 1.")
    return N


def real(name: str, value: Any) -> float:
    """`value` as a float; NaN and bools are refused."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise UserError(f"{name} must be a number, not {value!r}.")
    number = float(value)
    if math.isnan(number):
        raise UserError(f"{name} must be a number, not NaN.")
    return number


def probability(name: str, value: Any) -> float:
    """A number in [0, 1]."""
    number = real(name, value)
    if not 0.0 <= number <= 1.0:
        raise UserError(f"{name} must be between 0 and 1, not {number}.")
    return number


def log_confidence(value: Any) -> float:
    """log_delta, the logarithm of a delta in (0, 1]."""
    number = real("log_delta", value)
    if not -math.inf < number <= 0.0:
        raise UserError(
            f"log_delta must be the logarithm of a delta in (0, 1], at most 0 and finite, not {number}."
        )
    return number
