"""What every certificate of this package returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """An upper bound on a risk, and what it is made of.

    `value` is never below the bound of the theorem and at most 1e-9 above it. A vacuous bound is exactly 1.0 and
    `reason` says why; otherwise `reason` is None. `terms` names the numbers that went in: counts, and logarithms of
    the prices paid, whose sum is `epsilon`.

    >>> bound = Bound(1.0, "holdout", "No example was withheld.", {"withheld": 0})
    >>> float(bound), bound.reason
    (1.0, 'No example was withheld.')
    """

    value: float
    kind: str
    reason: str | None
    terms: dict[str, float]

    def __float__(self) -> float:
        return self.value


def make_bound(kind: str, value: float, terms: dict[str, float], reason: str) -> Bound:
    """A Bound of this value; the reason is kept only if the value is one."""
    return Bound(value, kind, reason if value == 1.0 else None, terms)
