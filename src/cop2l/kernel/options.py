"""The options of CoP2L with their types and ranges, and the rules for values from outside."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

Kind = Literal["kl", "preference", "buffer", "holdout"]
Family = Literal["tasks", "average", "forgetting", "classes", "groups"]


class UserError(ValueError):
    """A mistake of the user; the message says what is wrong and what to do.

    The command line prints it on stderr and exits with 2. In the library it is a ValueError.
    """


class Refusal(UserError):  # noqa: N818
    """A certificate, its data or an option is wrong; the message is one sentence."""


def require(condition: object, sentence: str) -> None:
    """Raise `Refusal` with this sentence unless the condition holds."""
    if not condition:
        raise Refusal(sentence)


def unknown(kind: str, name: object, names: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    choices = sorted(names)
    nearest = get_close_matches(str(name), choices, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose one of: {', '.join(choices)}."
    return UserError(f"There is no {kind} named {name!r}; {hint}")


# ---- rules for values from outside

Rule = Callable[[Any, str], Any]
"""rule(value, place) returns the value, or refuses it with a sentence that names its place."""


def make_rule(is_valid: Callable[[Any], bool], description: str) -> Rule:
    """The rule that a value must fulfil this condition, which the description words."""

    def check(value: Any, place: str) -> Any:
        shown = f"a {type(value).__name__}" if isinstance(value, list | dict) else f"{value!r:.40}"
        require(is_valid(value), f"{place} must be {description}, but it is {shown}.")
        return value

    return check


def integer(low: int = 0, high: int = 2**53) -> Rule:
    """An integer in a range, both ends included; true is not one."""
    return make_rule(lambda value: type(value) is int and low <= value <= high, f"a whole number from {low:g} to {high:g}")


def real_number(low: float, high: float) -> Rule:
    """A number in a range, both ends included, as a float."""
    in_range = make_rule(lambda value: type(value) is float and low <= value <= high, f"a number from {low:g} to {high:g}")
    return lambda value, place: in_range(float(value) if type(value) is int and abs(value) < 2**53 else value, place)


def choice_of(*values: Any) -> Rule:
    """One of these values; 1, 1.0 and true differ."""
    choices = [(type(value), value) for value in values]
    return make_rule(lambda value: (type(value), value) in choices, f"one of {', '.join(map(str, values))}")


def optional(rule: Rule) -> Rule:
    """None, or a value that fulfils the rule."""
    return lambda value, place: None if value is None else rule(value, place)


def list_of(rule: Rule, minimum: int = 0, maximum: int = 10**6) -> Rule:
    """A list, of a length in this range, of values that fulfil the rule."""
    size = f"a list of {minimum} to {maximum}"
    sized = make_rule(lambda value: isinstance(value, list | tuple) and minimum <= len(value) <= maximum, size)
    return lambda value, place: [rule(entry, f"{place}[{i}]") for i, entry in enumerate(sized(value, place))]


short_text = make_rule(lambda value: type(value) is str and len(value) < 99 and value.isprintable(), "a short name")
positive_number = real_number(1e-12, 1e12)

# ---- the options


@dataclass(frozen=True)
class Options:
    """Every choice that the learned parameters and the claim depend on; a certificate contains all of them."""

    memory: Annotated[int, integer(1, 10**9)] = 2000
    """How many examples of the past may be kept (m)."""
    k: Annotated[int, integer(1, 10**9)] = 8
    """How many examples one iteration picks."""
    omega: Annotated[float, positive_number] = 15.0
    """Weight of the buffer's examples, in picking, training and the stopping test."""
    gamma: Annotated[float, positive_number] = -math.log(0.5)
    """Picking stops when every weighted loss outside the compression set is below this."""
    epochs: Annotated[int, integer(1, 10**6)] = 10
    """Passes over the compression set in one update."""
    batch: Annotated[int, integer(1, 2**16)] = 256
    """Rows of every mini-batch; a smaller one is filled up with rows of its own, at weight zero."""
    lr: Annotated[float, positive_number] = 0.001
    """Learning rate."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Plain SGD as in the paper, or Adam; its state starts fresh at each task."""
    buffer: Literal["uniform", "threshold"] = "threshold"
    """Which examples of the past are kept: a random sample (the paper), or those with a mark below a threshold."""
    stop: Literal["kl", "preference", "none"] = "preference"
    """Which iteration is kept: that with the least kl bound (the paper) or (picked + errors)/n; or the last."""
    grid: bool = False
    """Only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and max_iterations may be kept: the choice then costs less."""
    max_iterations: Annotated[int | None, optional(integer(0, 10**9))] = None
    """Picking also stops after this many iterations."""
    delta: Annotated[float, real_number(1e-300, 0.5)] = 0.05
    """The claim holds with probability at least 1 - delta."""
    siblings: Annotated[int, integer(1, 10**6)] = 1
    """How many commitments are made for the same data, including this one; each has delta / siblings."""
    seed: Annotated[int, integer(-(2**63), 2**63 - 1)] = 0
    """All randomness is a function of (seed, task, iteration)."""
    kind: Kind = "preference"
    """The kind of bound that is claimed; it is named before the data is seen."""
    claim: Annotated[tuple[Family, ...], list_of(choice_of(*get_args(Family)), 1)] = ("tasks",)
    """The claimed families, named in advance; all hold at once. `tasks` bounds the error on every task, `average` its mean over
    tasks, `forgetting` what was right after its task and is wrong now, `classes` and `groups` the error on each of them."""
    shares: Annotated[tuple[int, ...], list_of(integer(1, 10**6))] = ()
    """How delta is divided between the claimed families, in that order, as in 3 to 1; empty: equally."""
    groups: Annotated[tuple[str, ...], list_of(short_text, maximum=1000)] = ()
    """The names of the groups, declared in advance; each example belongs to one group."""
    tasks: Annotated[int | None, optional(integer(1, 10**6))] = None
    """T, if it is fixed in advance: one certificate, after task T. None: a certificate after any task, and all hold together."""

    def __post_init__(self) -> None:
        for key, rule in OPTION_RULES.items():
            value = rule(getattr(self, key), key)
            object.__setattr__(self, key, tuple(value) if isinstance(value, list) else value)
        kind_fits = self.kind not in ("preference", "buffer") or self.uses_marks
        require(kind_fits, f"The kind {self.kind!r} needs buffer='threshold'; or take the kind 'kl'.")
        distinct = all(len(set(names)) == len(names) for names in (self.claim, self.groups))
        require(distinct, "Name each claimed family and each group once.")
        require(bool(self.groups) == ("groups" in self.claim), "Declare groups=[...] if and only if 'groups' is claimed.")
        average_follows = "average" not in self.claim or "tasks" in self.claim or self.kind == "holdout"
        require(average_follows, "The average needs the bounds of the tasks when examples are picked: claim tasks, too.")
        require(len(self.shares) in (0, len(self.claim)), "Give shares one whole number for each claimed family.")
        require(not self.grid or self.max_iterations is not None, "grid=True needs max_iterations, the last number of the grid.")
        enough = self.tasks is None or self.memory >= self.tasks
        require(enough, f"memory={self.memory} is less than the number of tasks, {self.tasks}; give each task an example.")

    @property
    def uses_marks(self) -> bool:
        """Whether the mark of an example decides if it stays in the buffer; the preference certificate needs this."""
        return self.buffer == "threshold"

    @property
    def paid_families(self) -> int:
        """The number of families that delta is divided between; an average of bounds that hold anyway costs nothing."""
        return len(self.claim) - ("average" in self.claim and self.kind != "holdout")

    @property
    def anytime(self) -> bool:
        """Whether a certificate may be issued after any task, so that all of these must hold together."""
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


def rule_of(hint: Any) -> Rule:
    """The rule beside an annotated type; of any other type, the choice of its values."""
    inner = get_args(hint)
    return inner[1] if get_origin(hint) is Annotated else choice_of(*(inner or (True, False)))


OPTION_RULES = {key: rule_of(hint) for key, hint in get_type_hints(Options, include_extras=True).items()}
