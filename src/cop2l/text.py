"""The text about bounds, rates and assumptions in everything that cop2l prints; only the kernel words its own verdicts."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext

EXACT = Context(prec=1100)
"""Digits enough for every float and for 1 - delta."""


def percent(bound: float) -> str:
    """An upper bound, in per cent with two digits, rounded up: the same number wherever it is printed.

    >>> percent(0.03142), percent(0.03125), percent(1.0)
    ('3.15 %', '3.13 %', '100.00 %')
    """
    return f"{_scaled(bound, 100, 2, ROUND_CEILING)} %"


def interval(low: float, high: float) -> str:
    """An interval in per cent, rounded outwards.

    >>> interval(0.01643, 0.11283)
    '1.64 to 11.29'
    """
    return f"{_scaled(low, 100, 2, ROUND_FLOOR)} to {_scaled(high, 100, 2, ROUND_CEILING)}"


def rate(measured: float, digits: int = 1) -> str:
    """A measured rate in per cent, rounded to the nearest.

    >>> rate(0.951), rate(-0.0001)
    ('95.1 %', '0.0 %')
    """
    return f"{rounded(measured, digits, 100)} %"


def rounded(value: float, digits: int, scale: int = 1) -> str:
    """A measured number times `scale`, rounded to the nearest, with no minus before a zero."""
    number = Decimal(repr(float(value))) * scale
    number = number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    return f"{abs(number) if number == 0 else number}"


def _scaled(value: float, scale: int, digits: int, rounding: str) -> Decimal:
    with localcontext(EXACT):
        return (Decimal(value) * scale).quantize(Decimal(1).scaleb(-digits), rounding)


def confidence(delta: float | Decimal) -> str:
    """The probability 1 - delta, not rounded.

    >>> confidence(0.05), confidence(1e-30)
    ('95 %', '1 - 1e-30')
    """
    exact = Decimal(str(delta))
    if exact < Decimal("1e-6"):
        return f"1 - {exact:e}"
    with localcontext(EXACT):
        return f"{(100 - 100 * exact).normalize():f} %"


def duration(seconds: float) -> str:
    """A time as people read it.

    >>> duration(3.21), duration(75), duration(7500)
    ('3.2 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listing(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
