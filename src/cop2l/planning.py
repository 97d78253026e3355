"""Before the data is bought: which bound to expect, and how much data and memory a target needs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from cop2l.bounds import (
    anytime_log_delta,
    buffer_certificate,
    combined_certificate,
    holdout_certificate,
    preference_certificate,
)
from cop2l.bounds.checks import count, real
from cop2l.certify.presets import PRESETS
from cop2l.errors import UserError, unknown
from cop2l.kernel.arithmetic import percent
from cop2l.kernel.options import grid_points

KINDS = ("holdout", "combined", "preference")
LARGEST = 10**9
"""More examples, memory or tasks than this are not planned with."""
USUAL: dict[str, dict[str, Any]] = {
    "holdout": {"prior": 0.5},
    "combined": {name: PRESETS["hybrid"][name] for name in ("prior", "prior_memory", "max_iterations")},
    "preference": {"prior": 0.0, "prior_memory": 0.0, "max_iterations": PRESETS["cop2l"]["max_iterations"]},
}
"""What cop2l does unless told otherwise; for `holdout`, prior is the half that is learned from."""


@dataclass(frozen=True)
class Row:
    """One kind of certificate, from a task's data or from memory alone. None: was not asked, or cannot be had."""

    kind: str
    data: str
    """`at hand`: the task's own data is read once more; `gone`: only the memory is left."""
    bound: float | None
    """What to expect, if the counts are as expected."""
    examples: int | None
    """Examples of each task."""
    certify: int | None
    """How many of them the bound is counted on."""
    memory: int | None
    """m: how many examples the memory may hold."""
    most_tasks: int | None = None
    """With a target: how many tasks keep it with the examples (and the memory) that were given."""
    learn: float | None = None
    """With a target: the largest share of these examples that may be learned from freely."""


@dataclass(frozen=True)
class Plan:
    """What was asked, and a row for each kind of certificate."""

    asked: dict[str, Any]
    rows: tuple[Row, ...]

    def row(self, kind: str, data: str = "at hand") -> Row:
        """The row of a kind."""
        for row in self.rows:
            if (row.kind, row.data) == (kind, data):
                return row
        raise unknown("row", f"{kind}, {data}", [f"{row.kind}, {row.data}" for row in self.rows])

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {"asked": self.asked, "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        return "\n".join([*_table(self), "", *_sentences(self)])


@dataclass(frozen=True)
class _Scheme:
    """A kind of certificate with its shares; `bound` is a function of what is counted on and of the number of tasks."""

    kind: str
    gone: bool
    prior: Fraction
    prior_memory: float
    rate: Fraction
    picks: Fraction
    grid: int
    log_delta: float
    anytime: bool

    def certified(self, examples: int) -> int:
        """How many of a task's examples certify."""
        return examples - int(self.prior * examples)

    def kept(self, memory: int, tasks: int) -> int:
        """How many examples of a task the memory is expected to hold for counting: m'/T, as the thresholds are set."""
        a = memory - round(self.prior_memory * memory) + 1
        return int(max(0.0, a - math.sqrt(9.22 * a)) / tasks)

    def counted(self, examples: int, memory: int | None, tasks: int) -> int:
        """How many examples the bound is counted on."""
        n = self.certified(examples)
        return min(n, self.kept(memory, tasks)) if self.gone and memory is not None else n

    def bound(self, n: int, tasks: int, fewer: int = 0) -> float:
        """The bound at the expected counts, or at so many fewer, n of a task's examples being counted on."""
        share = anytime_log_delta(self.log_delta, tasks) if self.anytime else self.log_delta
        compressed = math.ceil(self.rate * n) - fewer
        picked = min(compressed, math.ceil(self.picks * n))
        if self.kind == "holdout":
            return float(holdout_certificate(n, compressed, tasks, share))
        kept, grid = int(picked > 0), self.grid  # on a grid every number of iterations but 0 costs the same
        if self.kind == "combined":
            return float(combined_certificate(n, picked, compressed - picked, kept, tasks, share, grid=grid))
        if self.gone:
            return float(buffer_certificate(n, compressed, kept, tasks, share, grid=grid))
        return float(preference_certificate(n, picked, compressed - picked, kept, tasks, share, grid=grid))

    def needed(self, target: float, tasks: int) -> int | None:
        """The least number to count on that meets the target.

        The expected counts are rounded up, so that the bound is least just before they grow, at floor(j/rate): first the j
        is found, then the number. Rounding j/rate may spoil a j and spare a smaller one; none is left below a j that misses
        the target with j counts in one example more than j/rate, as without rounding the bound decreases in j.
        """
        if self.rate >= Fraction(repr(target)):
            return None

        def top(j: int) -> int:
            return int(j / self.rate) if self.rate else j

        j = _least(
            lambda j: top(j) > 0 and self.bound(top(j), tasks) <= target, int(LARGEST * (self.rate or 1))
        )
        if j is None:
            return None
        smaller = j - 1
        while self.rate and smaller and self.bound(top(smaller) + 1, tasks, fewer=1) <= target:
            j = smaller if self.bound(top(smaller), tasks) <= target else j
            smaller -= 1
        return _least(lambda n: self.bound(n, tasks) <= target, top(j), low=top(j - 1))


def plan(
    *,
    error: float,
    target: float | None = None,
    examples: int | None = None,
    memory: int | None = None,
    tasks: int = 1,
    delta: float = 0.05,
    anytime: bool = False,
    picks: float = 0.0,
    prior: float | None = None,
    prior_memory: float | None = None,
    kind: str | None = None,
    families: int = 1,
) -> Plan:
    """Which bound to expect or, with a target, what is needed for it.

    error: the error rate that you expect on new examples. target: the bound that you want. examples: how many each task
    has. memory: how many examples of the past may be kept. tasks: how many, all certified at once; anytime: a certificate
    after every task. picks: the share of the certified examples that will be picked (the kind preference needs it). prior: the
    share of each task that is learned from freely (usual: .5 holdout, .6 combined, 0 preference); prior_memory: the share of
    the memory that holds such examples (.9 combined, 0 preference). families: how many families of claims share delta.

    The bounds are those of `cop2l.bounds` at the expected counts; the counts of a real sample scatter around these.

    >>> round(plan(error=0.03, examples=10_000, tasks=10).row("holdout").bound, 4)
    0.0368
    """
    asked: dict[str, Any] = {
        "error": _share("error", error), "target": target, "examples": examples, "memory": memory,
        "tasks": count("tasks", tasks, least=1), "delta": _share("delta", delta, low=1e-300), "anytime": anytime,
        "picks": _share("picks", picks), "prior": prior, "prior_memory": prior_memory,
        "families": count("families", families, least=1),
    }  # fmt: skip
    _check(asked, kind)
    rows = []
    for scheme in _schemes(asked, kind):
        if target is not None:
            rows.append(_need(scheme, target, examples, memory, asked["tasks"]))
        elif not scheme.gone or memory is not None:
            rows.append(_expect(scheme, examples or 0, memory, asked["tasks"]))
    return Plan(asked, tuple(rows))


def _check(asked: dict[str, Any], kind: str | None) -> None:
    """Refuse questions without an answer."""
    target, picks, wrong = asked["target"], asked["picks"], asked["error"] + asked["picks"]
    if target is not None and not 0 < _share("target", target) < 1:
        raise UserError(f"target must be above 0 and below 1, for example 0.05, not {target}.")
    if target is None and asked["examples"] is None:
        raise UserError(
            "Say how many examples each task has (examples, such as 5000), or which bound is wanted (target, such as 0.05)."
        )
    for name in ("examples", "memory", "tasks"):
        if asked[name] is not None and count(name, asked[name], least=1) > LARGEST:
            raise UserError(f"{name} must be at most 10^9, not {asked[name]}.")
    if wrong >= 1:
        raise UserError(f"error and picks together must be below 1, not {wrong:g}.")
    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if kind == "preference" and not picks:
        raise UserError(
            "The kind preference learns from what it picks; say which share that will be (picks, such as 0.03)."
        )


def _schemes(asked: dict[str, Any], kind: str | None) -> Iterator[_Scheme]:
    """What is asked about: one kind, or all that make sense; of those with a memory, the data at hand and gone."""
    log_delta = math.log(asked["delta"] / asked["families"])
    error, picks, prior, prior_memory = (asked[name] for name in ("error", "picks", "prior", "prior_memory"))
    for name in [kind] if kind else KINDS if picks else KINDS[:2]:
        usual = USUAL[name]
        own = Fraction(repr(picks if name == "preference" or name == kind != "holdout" else 0.0))
        free = usual["prior"] if prior is None else _share("prior", prior, high=0.999)
        kept = (
            usual.get("prior_memory", 0.0) if prior_memory is None else _share("prior_memory", prior_memory)
        )
        for gone in (False, True) if name != "holdout" else (False,):
            yield _Scheme(
                name,
                gone,
                Fraction(repr(free)),
                kept if free else 0.0,
                Fraction(repr(error)) + own,
                own,
                len(grid_points(usual.get("max_iterations", 0))),
                log_delta,
                asked["anytime"],
            )


def _expect(scheme: _Scheme, examples: int, memory: int | None, tasks: int) -> Row:
    n = scheme.counted(examples, memory, tasks)
    shown = memory if scheme.gone else None
    return Row(scheme.kind, _data(scheme), scheme.bound(n, tasks), examples, n, shown)


def _need(scheme: _Scheme, target: float, examples: int | None, memory: int | None, tasks: int) -> Row:
    n, most, learn = scheme.needed(target, tasks), None, None
    if examples is not None and (memory is not None or not scheme.gone):
        given, room = examples, memory
        missed = _least(lambda T: scheme.bound(scheme.counted(given, room, T), T) > target, 10**6)
        most = 10**6 if missed is None else missed - 1
    if n is None:
        return Row(scheme.kind, _data(scheme), None, None, None, None, most)
    whole = _least(lambda total: scheme.certified(total) >= n, LARGEST, guess=int(n / (1 - scheme.prior)))
    room = _least(lambda m: scheme.kept(m, tasks) >= n, LARGEST) if scheme.gone else None
    if examples is not None and not scheme.gone:
        learn = max(0.0, 1 - n / examples)
    value = scheme.bound(n, tasks)
    return Row(scheme.kind, _data(scheme), value, whole, n, room, most, learn)


def _data(scheme: _Scheme) -> str:
    return "gone" if scheme.gone else "at hand"


def _least(good: Callable[[int], bool], high: int, low: int = 0, guess: int = 1) -> int | None:
    """The end of a bisection for a number above `low` that is good while the one before it is not; None: not even `high`."""
    step = min(max(guess, low + 1), high)
    while not good(step):
        if step >= high:
            return None
        low, step = step, min(2 * step, high)
    high = step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def _share(name: str, value: Any, low: float = 0.0, high: float = 1.0) -> float:
    number = real(name, value)
    if not low <= number <= high:
        raise UserError(f"{name} must be from {low:g} to {high:g}, not {number:g}.")
    return number


def _table(found: Plan) -> list[str]:
    lines = [f"{'kind':<11}{'its data':<9}{'examples':>11}{'certify':>11}{'memory':>11}{'error <=':>10}"]
    for row in found.rows:
        numbers = (row.examples, row.certify, row.memory)
        cells = ["-" if value is None else f"{value:,}".replace(",", " ") for value in numbers]
        shown = "-" if row.bound is None else percent(row.bound)
        lines.append(
            f"{row.kind:<11}{row.data:<9}" + "".join(f"{cell:>11}" for cell in cells) + f"{shown:>10}"
        )
    return lines


def _sentences(found: Plan) -> list[str]:
    asked, target = found.asked, found.asked["target"]
    times = "after any task" if asked["anytime"] else "after the last of a fixed number"
    whole = f"all {asked['tasks']} tasks" if asked["tasks"] > 1 else "one task"
    said = f"an error rate of {100 * asked['error']:g} %"
    lines = [
        f"For {whole} at once, {times}, with probability at least {100 * (1 - asked['delta']):g} %, at {said}."
    ]
    at_hand = {row.kind: row.bound for row in found.rows if row.data == "at hand"}
    for row in found.rows:
        old = f"An old task whose data is gone ({row.kind})"
        if target is not None and row.bound is None:
            name = row.kind if row.data == "at hand" else f"{row.kind}, data gone"
            lines.append(f"No number of examples up to 10^9 gives {100 * target:g} % ({name}).")
        elif target is not None and row.data == "gone":
            need = "more than 10^9" if row.memory is None else f"{row.memory}"
            lines.append(f"{old} keeps {100 * target:g} % with a memory of {need} examples.")
        elif target is None and row.data == "gone" and row.bound is not None:
            full = at_hand[row.kind]
            lines.append(
                f"{old} has {percent(row.bound)}, counted on about {row.certify} examples in memory, where its data would "
                f"give {percent(full or 1.0)}."
            )
        if row.learn is not None and asked["examples"] is not None:
            lines.append(
                f"Of {asked['examples']} examples at most {100 * row.learn:.1f} % may be learned from freely ({row.kind})."
                if row.certify is not None and row.certify <= asked["examples"]
                else f"{asked['examples']} examples are too few ({row.kind})."
            )
        if row.most_tasks is not None:
            more = f" and a memory of {asked['memory']}" if row.data == "gone" else ""
            keep = {0: "no task keeps", 1: "1 task keeps", 10**6: "a million tasks keep"}
            some = keep.get(row.most_tasks, f"at most {row.most_tasks} tasks keep")
            lines.append(f"With {asked['examples']} examples{more}, {some} it ({row.kind}, data {row.data}).")
    return [
        *lines,
        "Counts are the expected ones; those of a real sample scatter around them, and the bound with them.",
    ]
