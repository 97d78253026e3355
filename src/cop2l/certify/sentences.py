"""What must be said beside a bound, wherever it is shown: that nothing was picked, that a test error lies above it."""

from cop2l.bounds import binomial_upper_tail
from cop2l.kernel.arithmetic import percent


def nothing_picked(n: int, picked: int) -> str | None:
    """That the claim is a hold-out's, if nothing was picked from its n examples; in the words of the verifier.

    >>> nothing_picked(400, 0)
    'Nothing was picked: this is a hold-out certificate on 400 examples.'
    """
    return None if picked else f"Nothing was picked: this is a hold-out certificate on {n} examples."


P_VALUE = "The p-value is the probability of so many test errors, or more, if the true error were the claim."


def p_value(test_error: float, test_n: int, bound: float) -> float | None:
    """The probability of as many test errors, or more, if the true error were the bound; None unless they are above it."""
    errors = round(test_error * test_n)
    return binomial_upper_tail(errors, test_n, bound) if errors > test_n * bound else None


def above_claim(task: int, test_error: float, test_n: int, bound: float) -> str | None:
    """That a test error is above its claim, and how likely that is if the claim holds.

    >>> above_claim(2, 0.051, 1000, 0.05)
    'Task 2: the test error, 5.10 %, is above the claim, 5.01 %: p-value 0.46 (51 of 1000 test examples).'
    """
    p = p_value(test_error, test_n, bound)
    if p is None:
        return None
    return (
        f"Task {task}: the test error, {100 * test_error:.2f} %, is above the claim, {percent(bound)}:"
        f" p-value {p:.2g} ({round(test_error * test_n)} of {test_n} test examples)."
    )
