"""The result of every certificate function."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """An upper bound on a risk, and the numbers that it is computed from.

    value: never below the bound of the theorem, and at most 1e-9 above it. reason: why the bound is vacuous, if value is
    exactly 1.0; otherwise None. terms: counts, and logarithms of the prices paid, whose sum is `epsilon`.

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
    """A Bound of this value, with the reason if the value is 1."""
    return Bound(value, kind, reason if value == 1.0 else None, terms)
