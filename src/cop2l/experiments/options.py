"""The options of each method, read from the dataclass that declares them."""

import ast
import inspect
import textwrap
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from cop2l import methods
from cop2l.errors import UserError, unknown
from cop2l.experiments.config import FIELDS, Config, as_type
from cop2l.kernel.options import Options as KernelOptions
from cop2l.kernel.scale import FITTED
from cop2l.learner import presets

CERTIFIES_ITSELF = "cop2l"


class Key(NamedTuple):
    """A key of a run: its default, and the sentence under its declaration."""

    default: Any
    sentence: str


def declarations(method: str) -> tuple[type, ...]:
    """The dataclasses that declare the options of a method."""
    if method == CERTIFIES_ITSELF:
        return presets.Choice, KernelOptions
    cls: Any = methods.method(method)
    return (cls.Options,)


@cache
def types(method: str) -> dict[str, Any]:
    """The type of every option of a method, without the keys that every run has (memory, seed, ...)."""
    hints = [(get_type_hints(cls), fields(cls)) for cls in declarations(method)]
    return {f.name: kinds[f.name] for kinds, declared in hints for f in declared if f.name not in FIELDS}


def typed_option(method: str, name: str, value: Any) -> Any:
    """The value as the type of the method's option; an option that the method does not have is refused."""
    if name in types(method):
        return as_type(types(method)[name], value)
    if other := next((other for other in methods.METHODS if name in types(other)), None):
        raise UserError(f"{method} has no option {name}; for {other} alone, write methods.{other}.{name}.")
    raise unknown("key", name, [*FIELDS, *types(method)])


def check(config: Config) -> None:
    """Refuse wrong options, and a claim that the method cannot make, before any data is loaded."""
    for name, value in config.options.items():
        typed_option(config.method, name, value)
    if bool(config.groups) != ("groups" in config.claim):
        raise UserError(
            "A claim of groups needs their names; give both claim=groups and groups=A,B, or neither."
        )
    if config.method == CERTIFIES_ITSELF:
        if config.holdout or config.kind == "holdout":
            raise UserError(
                "CoP2L certifies itself by all examples that it does not pick; leave out holdout, or choose another method."
            )
        tasks = None if config.anytime else config.tasks
        kind = {"kind": config.kind} if config.kind else {}
        presets.options(
            **config.options, **claims(config), **kind, tasks=tasks, memory=config.memory, seed=config.seed
        )
        if FITTED in config.scale and not config.prepare:
            raise UserError(
                "All examples certify, so none can scale the inputs: set some aside with prepare=0.05, or give scale=none."
            )
        return
    if config.kind not in (None, "holdout"):
        raise UserError(f"{config.method} can only claim the hold-out bound; leave kind out.")
    if config.kind == "holdout" and not config.holdout:
        raise UserError(
            "The claim is the hold-out bound, but nothing is withheld; add for example holdout=0.5."
        )
    KernelOptions(kind="holdout", **claims(config))
    declarations(config.method)[0](**config.options)


def claims(config: Config) -> dict[str, Any]:
    """The keys of the run that say what is claimed."""
    return {name: getattr(config, name) for name in ("delta", "claim", "shares", "groups", "siblings")}


def defaults(method: str) -> dict[str, Any]:
    """The default of every option of a method."""
    if method == CERTIFIES_ITSELF:
        values = {"preset": presets.Choice.preset, **presets.options().as_dict()}
    else:
        values = {field.name: field.default for cls in declarations(method) for field in fields(cls)}
    return {name: values[name] for name in types(method)}


def run_keys(method: str) -> dict[str, Key]:
    """Every key of a run of a method: those of all runs, then the options of the method."""
    run = {
        name: Key(getattr(Config, name, {}), sentence) for name, sentence in field_sentences(Config).items()
    }
    sentences = {name: text for cls in declarations(method) for name, text in field_sentences(cls).items()}
    for name, kind in types(method).items():
        if get_origin(kind) is Literal:
            sentences[name] += f" One of: {', '.join(get_args(kind))}."
    return run | {name: Key(value, sentences[name]) for name, value in defaults(method).items()}


def field_sentences(declared: type) -> dict[str, str]:
    """The sentence under each field of a dataclass and of its bases."""
    sentences: dict[str, str] = {}
    for cls in reversed(declared.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                sentences[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    for scenario, values in getattr(declared, "by_scenario", {}).items():
        for name, value in values.items():
            sentences[name] = f"{sentences[name].rstrip('.')}; {value} if {scenario}."
    return sentences
