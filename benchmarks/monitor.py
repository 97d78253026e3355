"""False alarms and delay of the monitor beside river's ADWIN and DDM and beside a test of fixed windows.

    make compare-river      # in an environment of its own, or: python benchmarks/monitor.py, where river is installed

All see the same streams: 10 000 examples that are right or wrong, at a claim of at most 5 %. The tables are written into
docs/evidence.md. ADWIN and DDM have river's defaults; the window is tested at level alpha whenever it is full.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import river
from river.drift import ADWIN
from river.drift.binary import DDM
from scipy.stats import binom

from cop2l.monitor.evidence import log_evidence, starts_due

BOUND, ALPHA, LENGTH, STREAMS, LOOK, WINDOW = 0.05, 0.01, 10_000, 1000, 20, 500
PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"
BEGIN, END = "<!-- made by benchmarks/monitor.py -->\n", "<!-- end -->\n"
NEVER = LENGTH + 1

TRUE = {
    "5 %, all the time": [(0, 0.05)],
    "2.5 %, all the time": [(0, 0.025)],
    "1 %, from 5 000 on 5 %": [(0, 0.01), (5000, 0.05)],
}
FALSE = {
    "10 % from the start": [(0, 0.10)],
    "2.5 %, from 5 000 on 7.5 %": [(0, 0.025), (5000, 0.075)],
    "2.5 %, from 5 000 on 10 %": [(0, 0.025), (5000, 0.10)],
    "2.5 %, from 5 000 on 20 %": [(0, 0.025), (5000, 0.20)],
    "5 %, from 5 000 on 10 %": [(0, 0.05), (5000, 0.10)],
}


def streams(parts: list[tuple[int, float]], seed: int) -> np.ndarray:
    """One stream per row."""
    rates = np.empty(LENGTH)
    for start, rate in parts:
        rates[start:] = rate
    return np.random.default_rng(seed).random((STREAMS, LENGTH)) < rates


def monitored(wrong: np.ndarray) -> np.ndarray:
    """When the monitor raises its alarm, looking after every twentieth example."""
    total, at, starts, first = np.cumsum(wrong, 1), [], [], np.full(STREAMS, NEVER)
    for n in range(LOOK, LENGTH + 1, LOOK):
        errors = total[:, n - 1]
        if starts_due(n - LOOK, n):
            at.append(n)
            starts.append(errors)
        now = log_evidence(BOUND, n, errors, at, np.stack(starts, 1) if starts else np.empty((STREAMS, 0)))
        first = np.where((first == NEVER) & (now >= -np.log(ALPHA)), n, first)
    return first


def threshold(level: float) -> int:
    """How many errors of a window are too many for 5 %."""
    return int(binom.isf(level, WINDOW, BOUND)) + 1


def windows(level: float) -> Callable[[np.ndarray], np.ndarray]:
    """When the errors of a full window are too many, window after window."""
    least = threshold(level)

    def first(wrong: np.ndarray) -> np.ndarray:
        found = wrong.reshape(STREAMS, -1, WINDOW).sum(2) >= least
        return np.where(found.any(1), (found.argmax(1) + 1) * WINDOW, NEVER)

    return first


def rivers(make: Callable[[], ADWIN | DDM]) -> Callable[[np.ndarray], np.ndarray]:
    """When a detector of river says that there was a drift: all times, as it goes on by itself."""

    def times(wrong: np.ndarray) -> np.ndarray:
        found = np.zeros(wrong.shape, bool)
        for row, stream in enumerate(wrong.astype(int).tolist()):
            detector = make()
            for i, x in enumerate(stream):
                detector.update(x)
                found[row, i] = detector.drift_detected
        return found

    return times


METHODS = {
    "`cop2l monitor`, alpha = 0.01": monitored,
    "window of 500, alpha = 0.01 for each": windows(ALPHA),
    "window of 500, alpha/20 for each": windows(ALPHA / 20),
    "ADWIN": rivers(ADWIN),
    "DDM": rivers(DDM),
}


def first_after(found: np.ndarray, start: int) -> np.ndarray:
    """The first alarm after `start`; of the first alarm ever, if that is all that is known."""
    if found.ndim == 1:
        return found
    late = found[:, start:]
    return np.where(late.any(1), late.argmax(1) + 1 + start, NEVER)


def cell(found: np.ndarray, change: int) -> str:
    """The median delay, and the share of streams with an alarm before the change."""
    early = (found if found.ndim == 1 else first_after(found, 0)) <= change
    first = first_after(found, change)
    first = first[~early] if found.ndim == 1 else first
    delay = float(np.median(first - change)) if len(first) else np.inf
    text = "none" if delay > LENGTH - change else f"{delay:,.0f}".replace(",", " ")
    return text + (f" ({100 * early.mean():.0f} % before)" if change and early.any() else "")


def tables() -> str:
    """Both tables as Markdown."""
    lines = [
        f"{STREAMS} streams of {LENGTH} examples each; claim: at most 5 %; river {river.__version__} with its defaults.",
        "",
        "The claim is **true**: share of streams with an alarm, which is a false one.",
        "",
        "| error rate | " + " | ".join(METHODS) + " |",
        "|---" * (len(METHODS) + 1) + "|",
    ]
    for seed, (name, parts) in enumerate(TRUE.items()):
        wrong = streams(parts, seed)
        rates = [(first_after(method(wrong), 0) <= LENGTH).mean() for method in METHODS.values()]
        lines.append(f"| {name} | " + " | ".join(f"{100 * rate:.1f} %" for rate in rates) + " |")
        print(lines[-1], flush=True)
    exact = [
        1 - binom.cdf(threshold(level) - 1, WINDOW, BOUND) ** (LENGTH // WINDOW)
        for level in (ALPHA, ALPHA / 20)
    ]
    lines += [
        "",
        f"(The windows' exact probabilities at 5 % are {100 * exact[0]:.1f} % and {100 * exact[1]:.1f} %.)",
        "",
        "The claim is **false** from a moment on: median number of examples from then to the alarm (streams with one before).",
        "",
        "| error rate | " + " | ".join(METHODS) + " |",
        "|---" * (len(METHODS) + 1) + "|",
    ]
    for seed, (name, parts) in enumerate(FALSE.items(), 100):
        wrong = streams(parts, seed)
        lines.append(
            f"| {name} | " + " | ".join(cell(m(wrong), parts[-1][0]) for m in METHODS.values()) + " |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = tables()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{made}{END}{rest.split(END)[1]}", encoding="utf-8")
    print(PAGE.relative_to(PAGE.parents[1]))
