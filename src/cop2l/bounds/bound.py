"""The result of every certificate function."""

from dataclasses import dataclass

NO_EXAMPLE = "No example is left to support a bound."
ALL_WRONG = "Every example is picked or misclassified, so nothing supports a bound."
TOO_FEW = "There are too few examples, or too many errors, for this confidence: the bound rounds to one."


@dataclass(frozen=True)
class Bound:
    """An upper bound on a risk, and the numbers that it is computed from.

    value: never below the bound of the theorem, and at most 1e-9 above it; a binomial tail takes a delta above 1/2 as 1/2.
    reason: why the bound is vacuous, if value is exactly 1.0; otherwise None. terms: counts, and logarithms of the prices
    paid, whose sum is `epsilon`.

    >>> bound = make_bound("holdout", 1.0, 0, 0, {"withheld size": 0})
    >>> float(bound), bound.reason
    (1.0, 'No example is left to support a bound.')
    """

    value: float
    kind: str
    reason: str | None
    terms: dict[str, float]

    def __float__(self) -> float:
        return self.value


def make_bound(kind: str, value: float, k: int, n: int, terms: dict[str, float]) -> Bound:
    """The Bound of this value from n examples, of which k are picked or misclassified."""
    vacuous = NO_EXAMPLE if not n else ALL_WRONG if k == n else TOO_FEW
    return Bound(value, kind, vacuous if value == 1.0 else None, terms)
