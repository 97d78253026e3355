"""The options of CoP2L: names, types, ranges and sentences, declared once."""

import math
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

Kind = Literal["kl", "kl-tight", "preference", "combined", "buffer", "holdout"]
Family = Literal["tasks", "average", "forgetting", "classes", "groups"]


class Refusal(ValueError):  # noqa: N818
    """What was given cannot be accepted; the message is one sentence."""


def require(good: object, sentence: str) -> None:
    """Refuse with this sentence unless it is good."""
    if not good:
        raise Refusal(sentence)


@dataclass(frozen=True)
class Within:
    """The range of a number, both ends included."""

    low: float
    high: float


Positive = Within(1e-12, 1e12)


@dataclass(frozen=True)
class Options:
    """Every choice that the learned parameters and the claim depend on; all of it is written into the certificate."""

    memory: Annotated[int, Within(1, 10**9)] = 2000
    """How many examples of the past may be kept (m)."""
    k: Annotated[int, Within(1, 10**9)] = 8
    """How many examples one iteration picks."""
    omega: Annotated[float, Positive] = 15.0
    """Weight of the buffer's examples, in picking, training and the stopping test."""
    pick_omega: Annotated[float | None, Positive] = None
    """Weight of the buffer's examples in picking and in the stopping test; None: omega."""
    gamma: Annotated[float, Positive] = -math.log(0.5)
    """Picking stops when every weighted loss outside the compression set is below this."""
    epochs: Annotated[int, Within(1, 10**6)] = 10
    """Passes over the compression set in one update."""
    batch: Annotated[int, Within(1, 2**16)] = 256
    """Rows of every mini-batch; a smaller one is filled with its own rows again, at weight zero."""
    lr: Annotated[float, Positive] = 0.001
    """Learning rate."""
    optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    """Plain SGD as in the paper, SGD with momentum 0.9, or Adam; its state starts fresh at each task."""
    buffer: Literal["uniform", "threshold", "witness"] = "threshold"
    """How the past is kept: sampled (the paper), by a threshold on marks, or `witness`: by a threshold on marks, for
    counting errors only, never to be picked."""
    stop: Literal["kl", "preference", "combined", "none"] = "preference"
    """Which iteration is kept: that of the least kl bound (the paper), (picked + errors)/n or combined bound; or the last."""
    grid: bool = False
    """Only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and max_iterations may be kept: the choice then costs less."""
    max_iterations: Annotated[int | None, Within(0, 10**9)] = None
    """Picking also stops after this many iterations."""
    prior: Annotated[float, Within(0, 0.999)] = 0.0
    """Share of each task that is set aside for free training and replay, and is not certified (rho)."""
    prior_memory: Annotated[float, Within(0, 1)] = 1.0
    """Share of the memory that holds prior examples, if there is a prior part; the rest holds the buffer."""
    prior_epochs: Annotated[int, Within(0, 10**6)] = 40
    """Passes over the prior examples (own and stored) before the first pick."""
    prior_lr: Annotated[float | None, Positive] = None
    """Learning rate of that training; None: the same as lr."""
    balance: bool = True
    """Where there is a prior part, every class has the same total weight in training; else every example has."""
    start: Literal["weights", "slda"] = "weights"
    """What a task begins with: the weights as they are, or the linear head that LDA gives from sums over all prior parts and
    picks so far (`slda`, for a model whose head alone is trained); then prior_epochs is not used."""
    shrinkage: Annotated[float, Within(1e-12, 1)] = 1e-4
    """The weight of the identity beside the covariance, if start is `slda`."""
    delta: Annotated[float, Within(1e-300, 0.5)] = 0.05
    """The claim holds with probability at least 1 - delta."""
    seed: Annotated[int, Within(-(2**63), 2**63 - 1)] = 0
    """All randomness is a function of (seed, task, iteration)."""
    kind: Kind = "preference"
    """The kind of bound that is claimed; it is named before the data is seen."""
    claim: tuple[Family, ...] = ("tasks",)
    """What is claimed, named in advance, all at once: `tasks` bounds the error on every task, `average` its mean over tasks,
    `forgetting` what was right when its task was learned and is wrong now, `classes` and `groups` the error on each of them."""
    shares: tuple[int, ...] = ()
    """How delta is divided between what is claimed, in that order, as in 3 to 1; empty: equally."""
    groups: tuple[str, ...] = ()
    """The names of the groups, declared in advance; each example belongs to one."""
    tasks: Annotated[int | None, Within(1, 10**6)] = None
    """T, if it is fixed in advance: one certificate, after task T. None: one after any task, and all of them hold together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, checked(field.name, getattr(self, field.name)))
        good = self.kind != "combined" or self.buffer == "witness"
        require(good, f"The kind 'combined' needs buffer='witness', not {self.buffer!r}.")
        good = self.kind not in ("preference", "buffer") or self.marked
        require(good, f"The kind {self.kind!r} needs buffer='threshold' or 'witness', not {self.buffer!r}; or claim 'kl-tight'.")
        require(bool(self.groups) == ("groups" in self.claim), "Declare groups=[...] if and only if 'groups' is claimed.")
        good = "average" not in self.claim or "tasks" in self.claim or self.kind == "holdout"
        require(good, "The average is made of the tasks' own bounds where examples are picked: claim tasks too.")
        good = not self.shares or (len(self.shares) == len(self.claim) and min(self.shares) > 0)
        require(good, "shares must be one positive whole number for each family that is claimed.")
        require(self.start == "weights" or self.prior, "start='slda' needs a prior part to begin with: give prior=0.2, say.")
        require(not self.grid or self.max_iterations is not None, "grid=True needs max_iterations, the last number of the grid.")
        good = self.tasks is None or self.memory >= self.tasks
        require(good, f"memory={self.memory} is less than the number of tasks, {self.tasks}; give each task an example.")

    @property
    def prior_memory_size(self) -> int:
        """How many prior examples the memory may hold."""
        return round(self.prior_memory * self.memory) if self.prior else 0

    @property
    def marked(self) -> bool:
        """Whether an example's own mark decides if it stays: what the preference certificate needs."""
        return self.buffer in ("threshold", "witness")

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
    """0, 1, 2, 3, 4, 6, 8, 12, ..., two per octave, and `last` itself.

    >>> grid_points(20)
    (0, 1, 2, 3, 4, 6, 8, 12, 16, 20)
    """
    powers = [2**i for i in range(1, last.bit_length() + 1)]
    every = {0, 1, last, *powers, *(3 * power // 2 for power in powers)}
    return tuple(sorted(point for point in every if point <= last))


@cache
def _types() -> dict[str, tuple[Any, Within | None]]:
    """The type and the range of every option."""
    found = {}
    for name, hint in get_type_hints(Options, include_extras=True).items():
        limits = hint.__metadata__[0] if get_origin(hint) is Annotated else None
        found[name] = (get_args(hint)[0] if limits else hint, limits)
    return found


def checked(name: str, value: Any) -> Any:
    """The value of an option, or a refusal that says what it must be."""
    kind, limits = _types()[name]
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        known, single = get_args(inner), inner if inner is int else str
        good = isinstance(value, tuple | list) and len(value) <= 1000 and all(type(one) is single for one in value)
        if single is str:
            good = good and len(set(value)) == len(value) and all(one.isprintable() and len(one) < 99 for one in value)
            good = good and (not known or (value and set(value) <= set(known)))
        require(good, f"{name} must be a list of {', '.join(known) or f'{single.__name__}s'}, each once, not {value!r:.40}.")
        return tuple(value)
    choices = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        require(value in choices, f"{name} must be one of {', '.join(choices)}, but it is {value!r:.40}.")
    elif kind is bool:
        require(type(value) is bool, f"{name} must be true or false, but it is {value!r:.40}.")
    elif value is not None or type(None) not in choices:
        value = float(value) if type(value) is int and choices[0] is float and abs(value) < 2**53 else value
        assert limits is not None
        what = f"{'a whole' if choices[0] is int else 'a'} number from {limits.low:g} to {limits.high:g}"
        good = type(value) is choices[0] and limits.low <= value <= limits.high
        require(good, f"{name} must be {what}, but it is {value!r:.40}.")
    return value
