"""Configurations from TOML and from key=value, and the grid of runs that they make.

A file may hold sections that apply to one choice only, nested as deep as one likes:
`[methods.replay]`, `[scenarios.task-incremental]`, `[models.cnn]`, `[models.cnn.methods.cop2l]`. A stream has the
sections of its name, of its data (`[streams.cifar10]`) and of its features (`[streams."@dinov2-vits14-224"]`). The
preset `picking` has the sections of `paper` too, for what the preset itself does not say. What is said deeper wins, and
what is given on the command line wins over the file. `base = "mnist"` starts from another configuration: a built-in
one, or a file beside this one.

Under `[grid]`, and under the grid of a section (`[methods.cop2l.grid]`), a key has a list: one run for each of its
values. Elsewhere a key has one value; those of the tables `[data]` and `[architecture]` may be lists, and stay lists.
An option of the method is a key like any other: its bare name is enough, and `[options]` is where it may also stand.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, get_origin

from cop2l.certify import presets
from cop2l.certify.presets import PRESETS, Choice
from cop2l.errors import UserError, unknown
from cop2l.experiments import options
from cop2l.experiments.config import FIELDS, HINTS, TABLES, Config, from_toml, parse_untyped, typed_value
from cop2l.plugins import installed_names
from cop2l.streams.loading import COLUMNS
from cop2l.streams.loading import OWN as OWN_DATA
from cop2l.streams.task import SCENARIOS
from cop2l.text import as_typed

SECTIONS = {
    "streams": "stream",
    "methods": "method",
    "scenarios": "scenario",
    "models": "model",
    "presets": "preset",
}
"""Sections and the keys that choose among them; of two equally deep ones, the later wins."""
APART = ("stream", "scenario", "model", "method", "preset")
"""The order in which a grid is taken apart: which methods are run may depend on the stream and the scenario."""
GRID = "grid"
FEATURES = "_features"
OWN = "_own"
HIDDEN = "_"
"""A file whose name starts so is a base of others, and no configuration of its own."""


class Values(list[Any]):
    """The values of a key of a grid: one run for each."""


def builtin_names() -> list[str]:
    """The configurations that come with the package."""
    names = (entry.name for entry in (files("cop2l") / "configs").iterdir())
    return sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml") and not n.startswith(HIDDEN))


def read_configuration(name: str | Path) -> dict[str, Any]:
    """The tables of a configuration, by built-in name or by path, with its bases beneath it."""
    return _read(str(name), ())


def _read(name: str, above: tuple[str, ...]) -> dict[str, Any]:
    if name in above:
        raise UserError(f"The configuration {name} is its own base; remove one of the base lines.")
    path, builtin = Path(name), files("cop2l") / "configs" / f"{name}.toml"
    is_path = any(sign in name for sign in "/\\")
    if path.suffix != ".toml" and path.exists() and (is_path or not builtin.is_file()):
        return _read(OWN, (*above, name)) | {"name": path.stem, "stream": name}
    if "@" in name and path.suffix != ".toml":  # a stream of features: what all of them have in common
        return _read(FEATURES, above) | {"name": name, "stream": name}
    if path.suffix == ".toml" and not path.is_file():
        raise UserError(f"There is no file {name}; give one, or one of: {', '.join(builtin_names())}.")
    if path.suffix != ".toml" and not builtin.is_file():
        if name in installed_names("streams"):
            return _read(OWN, (*above, name)) | {"name": name, "stream": name}
        if name in choices("stream"):
            raise UserError(f"{name} is a stream and no configuration; write: cop2l run mnist stream={name}.")
        if is_path or path.suffix:
            raise UserError(
                f"There is no file or folder {name}; give the path of your data, or a configuration."
            )
        raise unknown("configuration", name, builtin_names())
    source = path if path.suffix == ".toml" else builtin
    try:
        table = tomllib.loads(source.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{name} is not valid TOML: {error}; correct it.") from error
    base = table.pop("base", None)
    if str(base).endswith(".toml"):
        base = path.parent / base
    below = _read(str(base), (*above, name)) if base is not None else {}
    return merge(below, {"name": path.stem, **place_grids(table)})


def place_grids(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with every list of its [grid], and of the grids of its sections, at its key.

    >>> place_grids({"memory": 500, "grid": {"seed": [0, 1]}})
    {'memory': 500, 'seed': [0, 1]}
    """
    here, grid = dict(table), table.get(GRID, {})
    if grid in (True, False, "true", "false"):  # CoP2L has an option of this name
        grid = {}
    else:
        here.pop(GRID, None)
    for key, inner in {GRID: grid, **{key: here[key] for key in SECTIONS if key in here}}.items():
        if not isinstance(inner, dict):
            raise UserError(f"{key} is {inner!r}; it is the name of a table, write [{key}].")
    for section in SECTIONS:
        for name, inner in here.get(section, {}).items():
            if not isinstance(inner, dict):
                raise UserError(f"{section}.{name} is {inner!r}; write a table, [{section}.{name}].")
            here[section] = {**here[section], name: place_grids(inner)}
    for key, values in flatten(grid).items():
        first, dot, rest = key.partition(".")
        if first in SECTIONS:
            raise UserError(f"Write the grid of a section inside it: [{key}.grid], not [grid.{key}].")
        if not isinstance(values, list):
            raise UserError(f"{key} is {values!r} under [grid]; give a list there, or one value outside.")
        if key in flatten(here):
            raise UserError(f"{key} is given twice, as a value and under [grid]; keep one.")
        here = merge(here, {first: {rest: Values(values)} if dot else Values(values)})
    return here


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested tables as one; where both say something, the second wins.

    >>> merge({"a": 1, "t": {"x": 1}}, {"t": {"y": 2}})
    {'a': 1, 't': {'x': 1, 'y': 2}}
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """The command line's key=value pairs as a nested table; values stay text until their type is known.

    Several values make a grid, but for the keys of tables, whose lists are lists: their grid is `grid.data.n=50,100`.
    What says how own data is read may do without its table: `label` is `data.label`.

    >>> given = overrides(["seed=0,1", "methods.replay.lr=.1", "columns=a,b"])
    >>> given
    {'seed': ['0', '1'], 'methods': {'replay': {'lr': '.1'}}, 'data': {'columns': ['a', 'b']}}
    >>> type(given["seed"]).__name__, type(given["data"]["columns"]).__name__
    ('Values', 'list')
    """
    table: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"Write an override as key=value, for example seed=3; {pair!r} is not.")
        *above, last = key.strip().split(".")
        path = [part for part in above if part != GRID] or ["data"] * (last in OWN_DATA)
        value = value_list(text.strip())
        if GRID in above:
            value = Values(value if isinstance(value, list) else [value])
        elif isinstance(value, list):
            lists = not path and is_listed(last)  # its parts have a declared type; those of a table have none
            one = column if last in COLUMNS else parse_untyped
            value = (
                value if lists else list(map(one, value)) if path and path[-1] in TABLES else Values(value)
            )
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UserError(f"{part} is given twice, as a value and as a table; keep one.")
        inner[last] = value
    return table


def value_list(text: str) -> Any:
    """A value, or the list of values that commas, brackets or a range of whole numbers make of it.

    >>> value_list("5"), value_list("a, b"), value_list("3..5")
    ('5', ['a', 'b'], ['3', '4', '5'])
    """
    if ends := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text, re.ASCII):
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise UserError(f"{text} is no range; write the smaller number first, as in 0..4.")
        return [str(number) for number in range(first, last + 1)]
    if text.startswith("["):
        value = from_toml(text)
        if value is None:
            raise UserError(f"{text} is no list; write its texts in quotes, or a,b without brackets.")
        return value
    return [part.strip() for part in text.split(",")] if "," in text else text


def expand(table: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> list[Config]:
    """Every run of the grid that a table and the overrides make; one run if there is no grid."""
    given = place_grids(given or {})
    sections = {key: value for key, value in given.items() if key in SECTIONS}
    plain = {key: value for key, value in given.items() if key not in SECTIONS}
    whole = merge(place_grids(table), sections)
    check(whole)
    single_values(flatten(plain))
    runs = map(build, settings(whole, flatten(plain)))
    return list({config.hash: config for config in runs}.values())


def build(flat: Mapping[str, Any]) -> Config:
    """The run that flat settings describe, each value of its declared type; what a declaration refuses is refused."""
    for key in ("method", "scenario", "model"):
        check_choice(key, flat.get(key))
    values: dict[str, Any] = {}
    for key, value in flat.items():
        table, _, rest = key.partition(".")
        if key in FIELDS:
            values.setdefault(key, typed_value(key, value))
            continue
        if is_declared(key):
            found = column(value) if rest in COLUMNS else parse_untyped(value)
        else:
            table, rest, found = (
                "options",
                key,
                options.typed_option(flat.get("method", Config.method), key, value),
            )
        if flat.get(table) not in (False, "false"):
            values.setdefault(table, {})[rest] = found
    config = Config(**values)
    options.check(config)
    return config


def column(value: Any) -> Any:
    """The name of a column, or a list of them: one that reads as a number stays text.

    >>> column("64"), column("species")
    ('64', 'species')
    """
    found = parse_untyped(value)
    return found if isinstance(found, str | list) else value


def single_run(table: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Config:
    """The one run that a table and the overrides make; a grid is refused."""
    runs = expand(table, given)
    if len(runs) == 1:
        return runs[0]
    records = [flatten(asdict(run)) for run in runs]
    varied = [key for key in records[0] if len({json.dumps(record.get(key)) for record in records}) > 1]
    example = " ".join(f"{key}={as_typed(records[0][key])}" for key in varied)
    raise UserError(
        f"This configuration is a grid of {len(runs)} runs; use cop2l sweep, or choose one: {example}."
    )


def settings(table: Mapping[str, Any], given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Flat settings without a grid: the first key of it is taken apart, and the rest follows."""
    flat = flat_settings(table, given)
    for key in (*APART, *flat):
        if isinstance(values := flat.get(key), Values):
            if not values:
                raise UserError(f"{key} is an empty list; give it at least one value.")
            for value in values:
                yield from settings(table, given | {key: value})
            return
    yield flat


def flat_settings(table: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The table's plain keys, then those of the sections that apply, then what was given."""
    flat: dict[str, Any] = {}
    # A section may itself choose the scenario or the model, and so open another section: look again.
    for _ in range(len(SECTIONS) + 1):
        chosen = {key: flat.get(key, getattr(Config, key, None)) for key in SECTIONS.values()}
        has_presets = chosen["method"] == options.CERTIFIES_ITSELF
        chosen["preset"] = flat.get("preset", Choice.preset) if has_presets else None
        levels = sorted(_levels(table, chosen, 0), key=lambda level: level[0])  # the deeper section wins
        flat = {key: value for _, level in levels for key, value in level.items()} | given
        flat["model"] = flat.get("model") or usual_model(flat)
    return flat


def _levels(
    table: Mapping[str, Any], chosen: Mapping[str, Any], depth: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    yield depth, flatten({key: value for key, value in table.items() if key not in SECTIONS})
    for section, key in SECTIONS.items():
        for name in section_names(key, chosen[key]):
            if name in table.get(section, {}):
                followed = key == "preset" and name != chosen[key]
                said = PRESETS[chosen[key]] if followed else ()
                for level, flat in _levels(table[section][name], chosen, depth + 1):
                    yield level, {option: value for option, value in flat.items() if option not in said}


def section_names(key: str, choice: Any) -> Sequence[str]:
    """The sections that a choice opens; none while it is still open.

    >>> section_names("stream", "cifar10@dinov2-vits14-224")
    ('cifar10', '@dinov2-vits14-224', 'cifar10@dinov2-vits14-224')
    >>> section_names("preset", "picking")
    ('paper', 'picking')
    """
    if not isinstance(choice, str):
        return ()
    if key == "preset" and choice == "picking":
        return ("paper", choice)
    data, at, features = choice.partition("@")
    return (data, at + features, choice) if key == "stream" and at else (choice,)


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within as dotted keys, and the method's options by their bare names.

    >>> flatten({"seed": 3, "data": {"n": 5}, "options": {"lr": 0.1}})
    {'seed': 3, 'data.n': 5, 'lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {inner if key == "options" else f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat


def usual_model(flat: Mapping[str, Any]) -> str | None:
    """A head on features, else an MLP; None while the choice is still open."""
    stream = flat.get("stream", FIELDS["stream"].default)
    if not isinstance(stream, str):
        return None
    if "@" not in stream:
        return "mlp"
    return "multi-head" if flat.get("scenario") == "task-incremental" else "linear"


def is_declared(key: str) -> bool:
    """Whether a key is one of every run: a field, or a key of the stream's table or the model's."""
    table, dot, _ = key.partition(".")
    return table in TABLES if dot else key in FIELDS


def check(table: Mapping[str, Any], methods: Sequence[str] = ()) -> None:
    """Refuse what no run would read: sections of unknown names, and unknown keys in any section."""
    flat = flatten({key: value for key, value in table.items() if key not in SECTIONS})
    single_values(flat)
    for key in flat:
        named = [flat["method"]] if ":" in str(flat.get("method")) else []
        if not is_declared(key) and key not in (
            own := options.option_names(methods or [*choices("method"), *named])
        ):
            raise unknown("key", key, [*FIELDS, *own])
    for section, choice in SECTIONS.items():
        for name, inner in table.get(section, {}).items():
            check_choice(choice, name)
            concerned = {"methods": [name], "presets": [options.CERTIFIES_ITSELF]}
            check(inner, concerned.get(section, methods))


def single_values(flat: Mapping[str, Any]) -> None:
    """Refuse a list for a key that has one value in a run."""
    for key, value in flat.items():
        if type(value) is list and "." not in key and not is_listed(key):  # and no Values
            raise UserError(f"{key} is a list; write it under [grid] to make a run of each of its values.")


def is_listed(key: str) -> bool:
    """Whether the value of a key is a list: that of a run, or an option of some method."""
    return get_origin(HINTS.get(key)) is tuple or any(
        get_origin(options.types(method).get(key)) is tuple for method in choices("method")
    )


def check_choice(key: str, name: str | None) -> None:
    """Refuse a name that does not exist; a stream may be a file or features of any name, a method a class."""
    if name is None or (key == "stream" and any(sign in name for sign in "@./\\")):
        return
    if key == "method" and ":" in name:  # package.module:Class, imported to know its options
        from cop2l.methods import method

        method(name)
    elif key == "preset":
        presets.check_preset(name)
    elif name not in (known := choices(key)):
        raise unknown(key, name, known)


def choices(key: str) -> Collection[str]:
    """What a key that names something may name."""
    from cop2l.methods import METHODS
    from cop2l.models import MODELS
    from cop2l.streams import NAMES

    streams = (*NAMES, *installed_names("streams"))
    known = {"stream": streams, "method": METHODS, "scenario": SCENARIOS, "model": MODELS, "preset": PRESETS}
    return known[key]
