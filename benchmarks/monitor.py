"""False alarms and delay of the monitor beside river's ADWIN and DDM and beside a test of fixed windows.

    make compare-river      # in an environment of its own, or: python benchmarks/monitor.py, where river is installed

All get the same streams of 10 000 examples, each right or wrong, at a claim of at most 5 %. The tables are written into
docs/results.md. ADWIN and DDM have river's defaults; a window is tested at level alpha when it is full.
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
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
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


def monitored(errors: np.ndarray) -> np.ndarray:
    """The example after which the monitor raises its alarm; batches of twenty examples."""
    total, at, starts, first = np.cumsum(errors, 1), [], [], np.full(STREAMS, NEVER)
    for n in range(LOOK, LENGTH + 1, LOOK):
        count = total[:, n - 1]
        if starts_due(n - LOOK, n):
            at.append(n)
            starts.append(count)
        now = log_evidence(BOUND, n, count, at, np.stack(starts, 1) if starts else np.empty((STREAMS, 0)))
        first = np.where((first == NEVER) & (now >= -np.log(ALPHA)), n, first)
    return first


def threshold(level: float) -> int:
    """The number of errors in a window that refutes 5 %."""
    return int(binom.isf(level, WINDOW, BOUND)) + 1


def windows(level: float) -> Callable[[np.ndarray], np.ndarray]:
    """The example after which a full window has too many errors, for the first time."""
    least = threshold(level)

    def first(errors: np.ndarray) -> np.ndarray:
        alarms = errors.reshape(STREAMS, -1, WINDOW).sum(2) >= least
        return np.where(alarms.any(1), (alarms.argmax(1) + 1) * WINDOW, NEVER)

    return first


def rivers(make: Callable[[], ADWIN | DDM]) -> Callable[[np.ndarray], np.ndarray]:
    """All examples after which a detector of river reports a drift; it restarts by itself."""

    def times(errors: np.ndarray) -> np.ndarray:
        alarms = np.zeros(errors.shape, bool)
        for row, stream in enumerate(errors.astype(int).tolist()):
            detector = make()
            for i, x in enumerate(stream):
                detector.update(x)
                alarms[row, i] = detector.drift_detected
        return alarms

    return times


METHODS = {
    "`cop2l monitor`, alpha = 0.01": monitored,
    "window of 500, alpha = 0.01 for each": windows(ALPHA),
    "window of 500, alpha/20 for each": windows(ALPHA / 20),
    "ADWIN": rivers(ADWIN),
    "DDM": rivers(DDM),
}


def first_after(alarms: np.ndarray, start: int) -> np.ndarray:
    """The first alarm after `start`, from all alarms of each stream; if only the first alarm is known, that."""
    if alarms.ndim == 1:
        return alarms
    late = alarms[:, start:]
    return np.where(late.any(1), late.argmax(1) + 1 + start, NEVER)


def cell(alarms: np.ndarray, change: int) -> str:
    """The median delay, and the share of streams with an alarm before the change."""
    early = first_after(alarms, 0) <= change
    first = first_after(alarms, change)
    first = first[~early] if alarms.ndim == 1 else first
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
        errors = streams(parts, seed)
        rates = [(first_after(method(errors), 0) <= LENGTH).mean() for method in METHODS.values()]
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
        errors = streams(parts, seed)
        lines.append(
            f"| {name} | "
            + " | ".join(cell(method(errors), parts[-1][0]) for method in METHODS.values())
            + " |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, after = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{tables()}{END}{after.split(END)[1]}", encoding="utf-8")
    print(PAGE.relative_to(PAGE.parents[1]))
