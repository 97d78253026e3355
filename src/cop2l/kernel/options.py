"""The options of CoP2L: names, types, ranges and sentences, declared once; and the rules that such declarations are made of."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

Kind = Literal["kl", "kl-tight", "preference", "combined", "buffer", "holdout"]
Family = Literal["tasks", "average", "forgetting", "classes", "groups"]
PRIOR = "prior"
"""The scale of a model whose constants come from the prior part of the first task."""


class UserError(ValueError):
    """Something the user gave is wrong; the message is one sentence that says what to do.

    The command line prints it on stderr and exits with 2. In the library it is a ValueError.
    """


class Refusal(ValueError):  # noqa: N818
    """What was given cannot be accepted; the message is one sentence."""


def require(good: object, sentence: str) -> None:
    """Refuse with this sentence unless it is good."""
    if not good:
        raise Refusal(sentence)


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    return UserError(f"There is no {kind} named {name!r}; {hint}")


# ---- rules: what a value from outside must be

Check = Callable[[Any, str], Any]


def rule(good: Callable[[Any], bool], what: str) -> Check:
    """A check of one value: it is handed on, or refused by the name of its place."""

    def check(value: Any, where: str) -> Any:
        shown = f"a {type(value).__name__}" if isinstance(value, list | dict) else f"{value!r:.40}"
        require(good(value), f"{where} must be {what}, but it is {shown}.")
        return value

    return check


def whole(low: int = 0, high: int = 2**53) -> Check:
    """A whole number in a range, both ends included; true is not one."""
    return rule(lambda value: type(value) is int and low <= value <= high, f"a whole number from {low:g} to {high:g}")


def number(low: float, high: float) -> Check:
    """A number in a range, both ends included, as a float."""
    inside = rule(lambda value: type(value) is float and low <= value <= high, f"a number from {low:g} to {high:g}")
    return lambda value, where: inside(float(value) if type(value) is int and abs(value) < 2**53 else value, where)


def choice(*allowed: Any) -> Check:
    """One of some values; 1, 1.0 and true are not the same."""
    known = [(type(one), one) for one in allowed]
    return rule(lambda value: (type(value), value) in known, f"one of {', '.join(map(str, allowed))}")


def maybe(check: Check) -> Check:
    """That, or nothing."""
    return lambda value, where: None if value is None else check(value, where)


def many(check: Check, least: int = 0, most: int = 10**6) -> Check:
    """A list of such things."""
    sized = rule(lambda value: isinstance(value, list | tuple) and least <= len(value) <= most, f"a list of {least} to {most}")
    return lambda value, where: [check(entry, f"{where}[{i}]") for i, entry in enumerate(sized(value, where))]


short = rule(lambda value: type(value) is str and len(value) < 99 and value.isprintable(), "a short name")
positive = number(1e-12, 1e12)

# ---- the options


@dataclass(frozen=True)
class Options:
    """Every choice that the learned parameters and the claim depend on; all of it is written into the certificate."""

    memory: Annotated[int, whole(1, 10**9)] = 2000
    """How many examples of the past may be kept (m)."""
    k: Annotated[int, whole(1, 10**9)] = 8
    """How many examples one iteration picks."""
    omega: Annotated[float, positive] = 15.0
    """Weight of the buffer's examples, in picking, training and the stopping test."""
    pick_omega: Annotated[float | None, maybe(positive)] = None
    """Weight of the buffer's examples in picking and in the stopping test; None: omega."""
    gamma: Annotated[float, positive] = -math.log(0.5)
    """Picking stops when every weighted loss outside the compression set is below this."""
    epochs: Annotated[int, whole(1, 10**6)] = 10
    """Passes over the compression set in one update."""
    batch: Annotated[int, whole(1, 2**16)] = 256
    """Rows of every mini-batch; a smaller one is filled with its own rows again, at weight zero."""
    lr: Annotated[float, positive] = 0.001
    """Learning rate."""
    optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    """Plain SGD as in the paper, SGD with momentum 0.9, or Adam; its state starts fresh at each task."""
    buffer: Literal["uniform", "threshold", "count-only"] = "threshold"
    """How the past is kept: sampled (the paper), by a threshold on marks, or `count-only`: by a threshold on marks, for
    counting errors only, never to be picked."""
    stop: Literal["kl", "preference", "combined", "none"] = "preference"
    """Which iteration is kept: that of the least kl bound (the paper), (picked + errors)/n or combined bound; or the last."""
    grid: bool = False
    """Only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and max_iterations may be kept: the choice then costs less."""
    max_iterations: Annotated[int | None, maybe(whole(0, 10**9))] = None
    """Picking also stops after this many iterations."""
    prior: Annotated[float, number(0, 0.999)] = 0.0
    """Share of each task that are prior examples: used for training and replay, not certified (rho)."""
    prior_memory: Annotated[float, number(0, 1)] = 1.0
    """Share of the memory that holds prior examples, if there is a prior part; the rest holds the buffer."""
    prior_epochs: Annotated[int | None, maybe(whole(0, 10**6))] = 40
    """Passes over the prior examples (own and stored) before the first pick; None: 60 000 / rows of the task, from 20 to 200."""
    prior_lr: Annotated[float | None, maybe(positive)] = None
    """Learning rate of that training; None: the same as lr."""
    balance: bool = True
    """Where there is a prior part, every class has the same total weight in training; else a prior example that is kept has the
    weight n / kept of its task and class in the prior part: one until the memory is full."""
    start: Literal["weights", "slda"] = "weights"
    """What a task begins with: the weights as they are, or the linear head that LDA gives from sums over all prior parts and
    picks so far (`slda`, for a model whose head alone is trained); then prior_epochs is not used."""
    shrinkage: Annotated[float, number(1e-12, 1)] = 1e-4
    """The weight of the identity beside the covariance, if start is `slda`."""
    ridge: Annotated[float, number(0, 1e12)] = 0.0
    """ridge / N is added to the diagonal of the covariance of N examples: it weighs less the more examples there are."""
    delta: Annotated[float, number(1e-300, 0.5)] = 0.05
    """The claim holds with probability at least 1 - delta."""
    siblings: Annotated[int, whole(1, 10**6)] = 1
    """How many commitments are made for the same data, this one among them; each has delta / siblings."""
    seed: Annotated[int, whole(-(2**63), 2**63 - 1)] = 0
    """All randomness is a function of (seed, task, iteration)."""
    kind: Kind = "preference"
    """The kind of bound that is claimed; it is named before the data is seen."""
    claim: Annotated[tuple[Family, ...], many(choice(*get_args(Family)), 1)] = ("tasks",)
    """What is claimed, named in advance, all at once: `tasks` bounds the error on every task, `average` its mean over tasks,
    `forgetting` what was right when its task was learned and is wrong now, `classes` and `groups` the error on each of them."""
    shares: Annotated[tuple[int, ...], many(whole(1, 10**6))] = ()
    """How delta is divided between what is claimed, in that order, as in 3 to 1; empty: equally."""
    groups: Annotated[tuple[str, ...], many(short, most=1000)] = ()
    """The names of the groups, declared in advance; each example belongs to one."""
    tasks: Annotated[int | None, maybe(whole(1, 10**6))] = None
    """T, if it is fixed in advance: one certificate, after task T. None: one after any task, and all of them hold together."""

    def __post_init__(self) -> None:
        for key in RULES:
            value = checked_option(key, getattr(self, key))
            object.__setattr__(self, key, tuple(value) if isinstance(value, list) else value)
        require(self.kind != "combined" or self.buffer == "count-only", "The kind 'combined' needs buffer='count-only'.")
        good = self.kind not in ("preference", "buffer") or self.marked
        require(good, f"The kind {self.kind!r} needs buffer='threshold' or 'count-only', not {self.buffer!r}; or 'kl-tight'.")
        good = all(len(set(names)) == len(names) for names in (self.claim, self.groups))
        require(good, "What is claimed, and the groups, must each be named once.")
        require(bool(self.groups) == ("groups" in self.claim), "Declare groups=[...] if and only if 'groups' is claimed.")
        good = "average" not in self.claim or "tasks" in self.claim or self.kind == "holdout"
        require(good, "The average is made of the tasks' own bounds where examples are picked: claim tasks too.")
        require(len(self.shares) in (0, len(self.claim)), "shares must be one whole number for each family that is claimed.")
        require(self.start == "weights" or self.prior, "start='slda' needs a prior part to begin with: give prior=0.2, say.")
        require(not self.grid or self.max_iterations is not None, "grid=True needs max_iterations, the last number of the grid.")
        good = self.tasks is None or self.memory >= self.tasks
        require(good, f"memory={self.memory} is less than the number of tasks, {self.tasks}; give each task an example.")

    @property
    def prior_memory_size(self) -> int:
        """How many prior examples the memory may hold."""
        return round(self.prior_memory * self.memory) if self.prior else 0

    def prior_passes(self, rows: int) -> int:
        """Passes over the prior examples at a task of so many rows."""
        return min(max(60_000 // max(rows, 1), 20), 200) if self.prior_epochs is None else self.prior_epochs

    @property
    def marked(self) -> bool:
        """Whether an example's own mark decides if it stays: what the preference certificate needs."""
        return self.buffer in ("threshold", "count-only")

    @property
    def paid_families(self) -> int:
        """How many families delta is divided between: the average costs nothing where it is the mean of bounds that hold."""
        return len(self.claim) - ("average" in self.claim and self.kind not in ("holdout", "combined"))

    @property
    def anytime(self) -> bool:
        """Whether a certificate may be issued after any task, so that all of them must hold together."""
        return self.tasks is None

    @property
    def grid_points(self) -> tuple[int, ...]:
        """The numbers of iterations that may be kept; empty: any."""
        return grid_points(self.max_iterations) if self.grid and self.max_iterations is not None else ()

    def as_dict(self) -> dict[str, Any]:
        """The options as plain values, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@cache
def grid_points(last: int) -> tuple[int, ...]:
    """0, 1, 2, 3, 4, 6, 8, 12, ..., two per octave, and `last` itself."""
    powers = [2**i for i in range(1, last.bit_length() + 1)]
    return tuple(sorted(n for n in {0, 1, last, *powers, *(3 * power // 2 for power in powers)} if n <= last))


def rule_of(hint: Any) -> Check:
    """The rule that is written beside a type; else one of its values."""
    inner = get_args(hint)
    return inner[1] if get_origin(hint) is Annotated else choice(*(inner or (True, False)))


RULES = {key: rule_of(hint) for key, hint in get_type_hints(Options, include_extras=True).items()}


def checked_option(key: str, value: Any) -> Any:
    """The value of an option, or a refusal that says what it must be."""
    return RULES[key](value, key)
