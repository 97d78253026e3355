"""The time of a bound, in units of scoring one block of 256 examples by a linear head.

    python benchmarks/bounds.py

The two are measured in turns, and the smallest of many times is taken.
Goals: the kl bounds below 1, the preference bound at n = 10^6 below 10.
"""

import math
from collections.abc import Callable
from time import perf_counter

import torch
import torch.nn.functional as F

from cop2l import bounds

LOG_DELTA = math.log(0.05)
ITERATIONS = [75, 80, 60, 90, 70]
WIDTH, CLASSES, BLOCK = 384, 10, 256


def scoring() -> Callable[[], object]:
    """Cross-entropy of every example of one block under a linear head."""
    torch.set_num_threads(1)
    x, w, b = torch.randn(BLOCK, WIDTH), torch.randn(CLASSES, WIDTH), torch.randn(CLASSES)
    y = torch.randint(CLASSES, (BLOCK,))

    def score() -> torch.Tensor:
        with torch.no_grad():
            return F.cross_entropy(F.linear(x, w, b), y, reduction="none")

    return score


def cases(n: int) -> dict[str, Callable[[], object]]:
    """Every bound on n examples; a fortieth are picked, a hundredth are errors."""
    a, e = n // 40, n // 100
    return {
        "kl": lambda: bounds.kl_certificate(n, a, 20, e, ITERATIONS, 2, 5, LOG_DELTA),
        "preference": lambda: bounds.preference_certificate(n, a, e, 75, 5, LOG_DELTA),
        "preference, half compressed": lambda: bounds.preference_certificate(
            n, n // 4, n // 4, 75, 5, LOG_DELTA
        ),
        "preference, five compressed": lambda: bounds.preference_certificate(n, 2, 3, 75, 5, LOG_DELTA),
        "preference, delta e^-10000": lambda: bounds.preference_certificate(n, a, e, 75, 5, -1e4),
        "holdout": lambda: bounds.holdout_certificate(n, e, 5, LOG_DELTA),
        "holdout, delta 0.5": lambda: bounds.holdout_certificate(n, n // 2, 1, math.log(0.5)),
    }


def seconds(function: Callable[[], object], calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        function()
    return (perf_counter() - start) / calls


def main() -> None:
    score = scoring()
    print(f"block: {BLOCK} examples, linear head {WIDTH}-{CLASSES}, one thread")
    print(f"{'bound':<30}{'n':>10}{'microseconds':>14}{'blocks':>9}")
    for n in (10**4, 10**6, 10**7):
        for name, function in cases(n).items():
            function(), score()
            turns = [(seconds(function, 20), seconds(score, 20)) for _ in range(25)]
            bound, block = (min(times) for times in zip(*turns, strict=True))
            print(f"{name:<30}{n:>10}{bound * 1e6:>14.1f}{bound / block:>9.2f}")


if __name__ == "__main__":
    main()
