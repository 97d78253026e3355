"""The options of CoP2L, and the two presets."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from cop2l.errors import UserError, unknown

Buffer = Literal["uniform", "priority", "threshold", "witness"]
Stop = Literal["kl", "preference", "combined", "none"]
Optimiser = Literal["sgd", "momentum", "adam"]
Claim = Literal["kl", "kl-tight", "preference", "combined", "buffer"]


@dataclass(frozen=True)
class Options:
    """Every choice that the learned parameters depend on; all of it is written into the certificate."""

    memory: int = 2000
    """m: how many examples of the past may be kept."""
    k: int = 8
    """Block size: how many examples one iteration picks."""
    omega: float = 15.0
    """Weight of the buffer's examples, in picking, training and the stopping test."""
    gamma: float = -math.log(0.5)
    """Picking stops when every weighted loss outside the compression set is below this."""
    epochs: int = 10
    """E: passes over the compression set in one update."""
    batch: int = 256
    """Mini-batch size of an update."""
    lr: float = 0.001
    """Learning rate."""
    optimiser: Optimiser = "sgd"
    """Plain SGD as in the paper, SGD with momentum 0.9, or Adam; its state starts fresh at each task."""
    buffer: Buffer = "threshold"
    """How the past is kept: sampled (the paper), by a priority per index, by a threshold on marks; or `witness`: by
    a threshold on marks, for counting errors only, never to be picked."""
    stop: Stop = "preference"
    """Which iteration is kept: the least kl bound (the paper), (|G| + errors)/n or combined bound; or the last."""
    prior: float = 0.0
    """rho: share of each task that is set aside for free training and replay, and is not certified."""
    prior_memory: float = 1.0
    """Share of the memory that holds prior examples, if there is a prior part; the rest holds the buffer."""
    prior_epochs: int = 40
    """Passes over the prior examples (own and stored) before the first pick."""
    prior_lr: float | None = None
    """Learning rate of that training; None: the same as lr."""
    max_iterations: int | None = None
    """Picking also stops after this many iterations."""
    delta: float = 0.05
    """The certificates hold with probability at least 1 - delta."""
    seed: int = 0
    """All randomness is a function of (seed, task, iteration)."""
    claim: Claim = "preference"
    """The kind of bound that is the claim; it is named before the data is seen."""
    tasks: int | None = None
    """T, if the number of tasks is fixed in advance; None: certificates hold at all times together."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("memory", "k", "epochs", "batch"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("omega", "gamma", "lr"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, "a positive number", value)
        _require(0 <= self.prior < 1, "prior", "in [0, 1)", self.prior)
        _require(0 <= self.prior_memory <= 1, "prior_memory", "in [0, 1]", self.prior_memory)
        _require(self.prior_epochs >= 0, "prior_epochs", "at least 0", self.prior_epochs)
        if self.prior_lr is not None:
            _require(
                math.isfinite(self.prior_lr) and self.prior_lr > 0,
                "prior_lr",
                "a positive number",
                self.prior_lr,
            )
        _require(0 < self.delta < 1, "delta", "in (0, 1)", self.delta)
        _require(-(2**63) <= self.seed < 2**63, "seed", "a 64-bit integer", self.seed)
        for name, least in (("max_iterations", 0), ("tasks", 1)):
            value = getattr(self, name)
            _require(value is None or value >= least, name, f"at least {least} (or None)", value)
        if self.claim == "combined" and self.buffer != "witness":
            raise UserError(f"The claim 'combined' needs buffer='witness', not {self.buffer!r}.")
        if self.claim in ("preference", "buffer") and not self.marked:
            raise UserError(
                f"The claim {self.claim!r} needs buffer='threshold' or 'witness', not {self.buffer!r}; "
                "claim 'kl' or 'kl-tight', or change the buffer."
            )
        if self.tasks is not None and self.memory < self.tasks:
            raise UserError(
                f"memory={self.memory} is smaller than the number of tasks, {self.tasks}; give each task at least one place."
            )

    @property
    def prior_places(self) -> int:
        """How many places of the memory hold prior examples."""
        return round(self.prior_memory * self.memory) if self.prior else 0

    @property
    def buffer_places(self) -> int:
        """How many places of the memory hold the buffer: examples of the certified parts."""
        return self.memory - self.prior_places

    @property
    def marked(self) -> bool:
        """Whether an example's own mark decides if it stays: what the preference certificate needs."""
        return self.buffer in ("threshold", "witness")

    def as_dict(self) -> dict[str, Any]:
        """The options as plain values, for JSON."""
        return asdict(self)


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"buffer": "uniform", "stop": "kl", "claim": "kl"},
    "certified": {
        "buffer": "witness", "stop": "combined", "claim": "combined",
        "prior": 0.6, "prior_memory": 0.9, "prior_epochs": 20, "prior_lr": 0.05,
        "k": 16, "epochs": 1, "batch": 64, "lr": 0.005, "max_iterations": 20,
    },
}  # fmt: skip
"""`paper` is CoP2L as published. `certified` is ours and the default: three fifths of each task train freely,
and the rest certifies; docs/reproduction.md has the search that led to it."""

WITHOUT_PRIOR: dict[str, Any] = {"buffer": "threshold", "stop": "preference", "claim": "preference"}
"""What `certified` is where the user asks for prior=0: CoP2L with a threshold buffer."""


def options(preset: str = "certified", **changes: Any) -> Options:
    """A preset with changes; an unknown name is an error that names the nearest.

    >>> options("paper", k=4).buffer
    'uniform'
    """
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    known = {field.name for field in fields(Options)}
    for name in changes:
        if name not in known:
            raise unknown("option", name, known)
    given = WITHOUT_PRIOR if preset == "certified" and changes.get("prior") == 0 else PRESETS[preset]
    chosen = {**given, **changes}
    if "claim" not in changes:
        chosen["claim"] = {"witness": "combined", "threshold": "preference"}.get(
            chosen["buffer"], chosen["claim"]
        )
        if chosen["claim"] in ("preference", "combined") and chosen["buffer"] in ("uniform", "priority"):
            chosen["claim"] = "kl-tight"
    return replace(Options(), **chosen)


def _require(good: bool, name: str, what: str, value: object) -> None:
    if not good:
        raise UserError(f"{name} must be {what}, but it is {value!r}.")


def _check_types(chosen: Options) -> None:
    for field in fields(chosen):
        value = getattr(chosen, field.name)
        kind: Any = field.type
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise unknown(field.name, str(value), get_args(kind))
            continue
        if value is None and type(None) in get_args(kind):
            continue
        if kind in (float, float | None):
            _require(type(value) in (int, float), field.name, "a number", value)
            object.__setattr__(chosen, field.name, float(value))
        else:
            _require(type(value) is int, field.name, "an integer", value)
