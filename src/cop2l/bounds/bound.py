"""What every certificate of this room returns."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bound:
    """An upper bound on a risk, and what it is made of.

    `value` is never below the true bound and at most 1e-9 above it; a vacuous bound is exactly 1.0 and then
    `reason` says why (else it is None). `terms` names the numbers that went in.
    """

    value: float
    kind: str
    reason: str | None = None
    terms: dict[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.value


def made(kind: str, value: float, terms: dict[str, float], vacuous: str) -> Bound:
    """A Bound; `vacuous` is the sentence for a value of one."""
    return Bound(min(value, 1.0), kind, vacuous if value >= 1.0 else None, terms)
