"""The configuration of one run."""

import contextlib
import hashlib
import json
import tomllib
import typing
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

from cop2l.errors import UserError, unknown
from cop2l.kernel.options import Options
from cop2l.kernel.scale import FITTED
from cop2l.streams.task import SCENARIOS

TABLES = ("options", "data", "architecture")
UNHASHED = ("name",)
ADDED_LATER = ("scale", "siblings", "repeats")
"""Keys that the hash leaves out at their default, so that older runs keep their hash."""


@dataclass(frozen=True)
class Config:
    """Everything that one run depends on; None means the default of the method or the stream."""

    method: str = "cop2l"
    """The method; see `cop2l list methods`."""
    stream: str = "mnist"
    """A data set, features such as cifar10@dinov2-vits14-224, or the path of your own data."""
    scenario: str | None = None
    """class-incremental, task-incremental or domain-incremental."""
    tasks: int | None = None
    """The number of tasks that the classes are split into."""
    class_seed: int | None = None
    """Shuffles the classes before they are split into tasks; without it they come in label order."""
    order: str | None = None
    """The order of the tasks: reversed starts with the last one. Each task keeps its classes."""
    order_seed: int | None = None
    """Draws the order of the tasks. Each task keeps its classes."""
    images: str = "shared"
    """Domain-incremental streams: shared if all tasks have the same images, or disjoint."""
    folder: str | None = None
    """The folder of the data; without it, the usual folders are searched."""
    stream_seed: int = 0
    """The seed of the stream: permutations, angles, synthetic examples."""
    data: dict[str, Any] = field(default_factory=dict)
    """Further options of the stream, as data.KEY."""
    model: str | None = None
    """The model; see `cop2l list models`. Without it: a head on features, else an MLP."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """Further options of the model, as architecture.KEY."""
    scale: tuple[float | str, ...] = ()
    """The scale of the inputs: `fitted`, to rows of task 1 that do not certify; or a shift and a factor, as 127.5,0.0078125."""
    memory: int = Options.memory
    """How many examples of past tasks may be kept."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the method, by their bare names; `cop2l list keys METHOD` explains them."""
    delta: float = Options.delta
    """The probability that a certificate may fail."""
    siblings: int = Options.siblings
    """How many commitments are made for the same data, this one included; each has delta / siblings."""
    kind: str | None = None
    """The kind of bound that is claimed, named in advance; the others are shown for information."""
    claim: tuple[str, ...] = Options.claim
    """The families that are claimed, named in advance: tasks, average, forgetting, classes, groups. All hold at once."""
    shares: tuple[int, ...] = Options.shares
    """How delta is divided between these families, in their order; without it: equally."""
    groups: tuple[str, ...] = Options.groups
    """The names of the groups, if groups are claimed; the stream has the group of each example."""
    anytime: bool = False
    """Certify after every task: the number of tasks is not fixed in advance, and more can be learned after the run."""
    holdout: float = 0.0
    """The share of each task that is withheld from learning, for the hold-out bound."""
    repeats: bool = False
    """Equal rows of a task are independent draws (discrete data); without it, all but one of them count as errors."""
    seed: int = Options.seed
    """The seed of initial weights, mini-batches, buffers and marks."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: int = 1
    """Threads of the process; the same number gives the same bits."""
    name: str = ""
    """The name of the configuration."""

    def __post_init__(self) -> None:
        if self.scenario is not None and self.scenario not in SCENARIOS:
            raise unknown("scenario", self.scenario, SCENARIOS)
        if self.order not in (None, "reversed"):
            raise unknown("order of tasks", self.order, ("reversed",))
        if self.images not in ("shared", "disjoint"):
            raise unknown("kind of images", self.images, ("shared", "disjoint"))
        least = dict.fromkeys(("tasks", "memory", "threads"), 1)
        least |= dict.fromkeys(("seed", "stream_seed", "class_seed", "order_seed"), 0)
        for key, smallest in least.items():
            if (value := getattr(self, key)) is not None and value < smallest:
                raise UserError(f"{key} is {value}; give a whole number of at least {smallest}.")
        if self.scale == ("none",):
            object.__setattr__(self, "scale", ())
        if self.scale not in ((), (FITTED,)) and [*map(type, self.scale)] != [float, float]:
            raise UserError(
                f"scale is {','.join(map(str, self.scale))}; give fitted, or a shift and a factor such as 127.5,0.0078125."
            )
        if not 0 <= self.holdout < 1:
            raise UserError(f"holdout is {self.holdout}; give a share from 0 up to, not including, 1.")

    @property
    def hash(self) -> str:
        """A digest of everything that decides the results; the name of the default run directory."""
        decisive = {key: value for key, value in asdict(self).items() if key not in UNHASHED}
        for key in ADDED_LATER:
            if decisive[key] == FIELDS[key].default:
                del decisive[key]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]

    def as_record(self) -> dict[str, Any]:
        """The configuration and its hash, for JSON."""
        return {"hash": self.hash, **asdict(self)}


TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
FIELDS = {f.name: f for f in fields(Config)}
HINTS = typing.get_type_hints(Config)


def from_toml(text: str) -> Any:
    """The TOML value that a text is; None if it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None


def parse_untyped(value: Any) -> Any:
    """A value without a declared type; a text that is a TOML value becomes that value."""
    parsed = from_toml(value) if isinstance(value, str) else value
    if parsed is None:
        return value
    if not is_plain(parsed):
        raise UserError(
            f"{value!r} is not a number, a text, true, false or a list; write it as one of these."
        )
    return parsed


def is_plain(value: Any) -> bool:
    return (
        all(map(is_plain, value)) if isinstance(value, list) else isinstance(value, bool | int | float | str)
    )


def typed_value(key: str, value: Any) -> Any:
    """The value of a field, as the type that it is declared with."""
    if key in TABLES:
        if value in (False, "false"):
            return {}
        raise UserError(f"{key} takes a table, not {value!r}; write {key}.NAME=VALUE.")
    kinds = typing.get_args(HINTS[key]) or (HINTS[key],)
    if typing.get_origin(HINTS[key]) is tuple:
        return tuple(as_type(HINTS[key], value))
    converted = as_type(HINTS[key], value)
    if type(converted) not in kinds:
        raise UserError(f"{key} takes {TYPE_NAMES[kinds[0]]}, not {value!r}.")
    return converted


def as_type(hint: Any, value: Any) -> Any:
    """The value as a declared type, or unchanged if it cannot be converted: then the declaration refuses it.

    >>> as_type(float, ".1"), as_type(int | None, "none"), as_type(bool, "true"), as_type(tuple[int, ...], "3")
    (0.1, None, True, [3])
    """
    kinds = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is tuple:
        single = str if kinds[0] is str else partial(as_type, kinds[0])  # the group 2019 is a name
        return [single(part) for part in (value if isinstance(value, list) else [value])]
    if type(None) in kinds and value == "none":
        return None
    if kinds[0] is bool and value in ("true", "false"):
        return value == "true"
    if (kinds[0] in (int, float) and isinstance(value, str)) or (kinds[0] is float and type(value) is int):
        with contextlib.suppress(ValueError, OverflowError):
            return kinds[0](value)
    return value
