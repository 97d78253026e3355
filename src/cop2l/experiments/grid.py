"""Configurations from TOML files and from key=value, and the grid of runs that they make.

A file may have sections that apply to one choice only, and sections within them: `[methods.replay]`,
`[scenarios.task-incremental]`, `[models.cnn]`, `[models.cnn.methods.cop2l]`. A stream of features has the sections of its
data (`[streams.cifar10]`), of its features (`[streams."@dinov2-vits14-224"]`) and of its full name. The preset `picking`
also reads the sections of `paper`, for the options that `picking` does not set. The deeper section wins, and the command
line wins over the file. `base = "mnist"` starts from another configuration: a built-in one, or a file in the same folder.

Under `[grid]`, and under the grid of a section (`[methods.cop2l.grid]`), a key has a list: one run for each value.
Elsewhere a key has one value; the keys of `[data]` and `[architecture]` may have a list, which stays a list. An option of
the method is a key like any other, by its bare name or under `[options]`.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, get_origin

from cop2l.errors import UserError, unknown
from cop2l.experiments import options
from cop2l.experiments.config import (
    FIELDS,
    HINTS,
    TABLES,
    UNHASHED,
    Config,
    from_toml,
    parse_untyped,
    typed_value,
)
from cop2l.learner.presets import PRESETS, Choice
from cop2l.methods import METHODS, method
from cop2l.models import MODELS
from cop2l.plugins import installed_names
from cop2l.streams.encoding import COLUMNS
from cop2l.streams.loading import NAMES
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
EXPANDED_FIRST = ("stream", "scenario", "model", "method", "preset")
"""These keys of a grid are expanded first, in this order: the methods may depend on the stream and the scenario."""
LISTED = [key for key, kind in HINTS.items() if get_origin(kind) is tuple]
"""The keys of a run that take a list."""
GRID = "grid"
OWN = "_own"


class Values(list[Any]):
    """The values of a key in a grid: one run for each."""


def builtin_names() -> list[str]:
    """The configurations that come with the package, without the bases: their names start with _."""
    names = (entry.name for entry in (files("cop2l") / "configs").iterdir())
    return sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml") and not n.startswith("_"))


def read_configuration(name: str | Path) -> dict[str, Any]:
    """The tables of a configuration, by built-in name or by path, merged with those of its bases."""
    return _read(str(name), ())


def _read(name: str, derived: tuple[str, ...]) -> dict[str, Any]:
    if name in derived:
        raise UserError(f"The configuration {name} is its own base; remove one of the base lines.")
    path, builtin = Path(name), files("cop2l") / "configs" / f"{name}.toml"
    is_path = bool(path.suffix) or any(sign in name for sign in "/\\")
    if path.suffix == ".toml" and path.is_file():
        return _read_toml(path, path, (*derived, name))
    is_builtin = builtin.is_file() and not is_path
    if (path.exists() or name in installed_names("streams")) and not is_builtin:
        return _read(OWN, (*derived, name)) | {"name": path.stem, "stream": name}
    if "@" in name:  # a stream of features
        return _read("_features", derived) | {"name": name, "stream": name}
    if is_builtin:
        return _read_toml(builtin, path, (*derived, name))
    if name in NAMES:
        raise UserError(f"{name} is a stream, not a configuration; write: cop2l run mnist stream={name}.")
    if is_path:
        raise UserError(f"There is no file or folder {name}; give the path of your data, or a configuration.")
    raise unknown("configuration", name, builtin_names())


def _read_toml(file: Any, path: Path, derived: tuple[str, ...]) -> dict[str, Any]:
    """The tables of a TOML file with those of its base; a base in the same folder is found beside `path`."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}; correct it.") from error
    base = table.pop("base", None)
    if str(base).endswith(".toml"):
        base = path.parent / base
    below = _read(str(base), derived) if base is not None else {}
    return merge(below, {"name": path.stem, **place_grids(table)})


def place_grids(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with each list of its [grid], and of the grids of its sections, at its own key.

    >>> place_grids({"memory": 500, "grid": {"seed": [0, 1]}})
    {'memory': 500, 'seed': [0, 1]}
    """
    result = dict(table)
    grid = result.pop(GRID) if isinstance(table.get(GRID), dict) else {}  # else it is an option of CoP2L
    for section in [key for key in SECTIONS if key in result]:
        tables = result[section]
        if not isinstance(tables, dict) or not all(isinstance(inner, dict) for inner in tables.values()):
            raise UserError(f"{section} is {tables!r}; write tables, [{section}.NAME].")
        result[section] = {name: place_grids(inner) for name, inner in tables.items()}
    for key, values in flatten(grid).items():
        table_name, dot, name = key.partition(".")
        if table_name in SECTIONS:
            raise UserError(f"Write the grid of a section inside it: [{key}.grid], not [grid.{key}].")
        if not isinstance(values, list):
            raise UserError(f"{key} is {values!r} under [grid]; give a list there, or one value outside.")
        if key in flatten(result):
            raise UserError(f"{key} is given twice, as a value and under [grid]; keep one.")
        result = merge(result, {table_name: {name: Values(values)} if dot else Values(values)})
    return result


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested tables as one; where both have a value, the second wins.

    >>> merge({"a": 1, "t": {"x": 1}}, {"t": {"y": 2}})
    {'a': 1, 't': {'x': 1, 'y': 2}}
    """
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """The key=value pairs of the command line as a nested table; a value stays text until its type is known.

    Several values make a grid. A key of a table takes them as a list; its grid is `grid.data.n=50,100`.
    A key that says how own data is read needs no table: `label` is `data.label`.

    >>> table = overrides(["seed=0,1", "methods.replay.lr=.1", "columns=a,b"])
    >>> table
    {'seed': ['0', '1'], 'methods': {'replay': {'lr': '.1'}}, 'data': {'columns': ['a', 'b']}}
    >>> type(table["seed"]).__name__, type(table["data"]["columns"]).__name__
    ('Values', 'list')
    """
    table: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"Write a key as key=value, for example seed=3, not {pair!r}.")
        *tables, last = key.strip().split(".")
        path = [part for part in tables if part != GRID] or ["data"] * (last in OWN_DATA)
        value = value_list(text.strip())
        if GRID in tables:
            value = Values(value if isinstance(value, list) else [value])
        elif isinstance(value, list) and path and path[-1] in TABLES:
            value = [column(part) if last in (*COLUMNS, "classes") else parse_untyped(part) for part in value]
        elif isinstance(value, list) and (path or last not in LISTED):
            value = Values(value)
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UserError(f"{part} is given twice, as a value and as a table; keep one.")
        inner[last] = value
    return table


def value_list(text: str) -> Any:
    """A value, or a list of values: written with commas, in brackets, or as a range of whole numbers.

    >>> value_list("5"), value_list("a, b"), value_list("3..5")
    ('5', ['a', 'b'], ['3', '4', '5'])
    """
    if ends := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text, re.ASCII):
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise UserError(f"{text} is not a range; write the smaller number first, as in 0..4.")
        return [str(number) for number in range(first, last + 1)]
    if text.startswith("["):
        value = from_toml(text)
        if value is None:
            raise UserError(f"{text} is not a list; write its texts in quotes, or a,b without brackets.")
        return value
    return [part.strip() for part in text.split(",")] if "," in text else text


def expand(table: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> list[Config]:
    """Every run of the grid that a table and the `overrides` make; one run if there is no grid."""
    table, changes = place_grids(table), place_grids(changes or {})
    check(merge(table, changes))
    sections = {key: value for key, value in changes.items() if key in SECTIONS}
    runs = map(build, settings(merge(table, sections), outside_sections(changes)))
    return list({config.hash: config for config in runs}.values())


def build(flat: Mapping[str, Any]) -> Config:
    """The run of some flat settings, each value as its declared type."""
    for key in ("method", "model"):
        check_choice(key, flat.get(key))
    values: dict[str, Any] = {}
    for key, value in flat.items():
        if key in FIELDS:
            values.setdefault(key, typed_value(key, value))
            continue
        if is_declared(key):
            table, _, name = key.partition(".")
            value = column(value) if name in COLUMNS else parse_untyped(value)
            if name == "classes" and isinstance(value, list):  # names: an auditor types them as text
                value = list(map(str, value))
        else:
            table, name = "options", key
            value = options.typed_option(flat.get("method", Config.method), key, value)
        if flat.get(table) not in (False, "false"):
            values.setdefault(table, {})[name] = value
    config = Config(**values)
    options.check(config)
    return config


def column(value: Any) -> Any:
    """The name of a column, or a list of names; the name 64 stays text.

    >>> column("64"), column("species")
    ('64', 'species')
    """
    parsed = parse_untyped(value)
    return parsed if isinstance(parsed, str | list) else value


def single_run(table: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The one run that a table and the `overrides` make; a grid is refused."""
    runs = expand(table, changes)
    if len(runs) == 1:
        return runs[0]
    raise UserError(
        f"This configuration is a grid of {len(runs)} runs; use cop2l sweep, or choose one: {run_names(runs)[0]}."
    )


def run_names(configs: Sequence[Config]) -> list[str]:
    """The names of the runs: the method, and the keys that vary between the runs of one method."""
    flat = [flatten({k: v for k, v in asdict(config).items() if k not in UNHASHED}) for config in configs]
    texts = defaultdict[tuple[str, str], set[str]](set)
    for settings in flat:
        for key, value in settings.items():
            texts[settings["method"], key].add(repr(value))
    several_methods = len({settings["method"] for settings in flat}) > 1
    names = []
    for settings in flat:
        varied = [key for key in settings if len(texts[settings["method"], key]) > 1]
        shown = ["method", *varied] if several_methods or not varied else varied
        names.append(
            " ".join(f"{key}={as_typed(settings[key])}" for key in shown if settings[key] is not None)
        )
    return names


def settings(table: Mapping[str, Any], changes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The flat settings of each run: the first key of the grid is expanded, then the next, until none is left."""
    flat = flat_settings(table, changes)
    for key in (*EXPANDED_FIRST, *flat):
        if isinstance(values := flat.get(key), Values):
            if not values:
                raise UserError(f"{key} is an empty list; give it at least one value.")
            for value in values:
                yield from settings(table, changes | {key: value})
            return
    yield flat


def flat_settings(table: Mapping[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The keys of the table, overridden by those of the sections that apply, then by the changes."""
    flat: dict[str, Any] = {}
    # A section may choose the scenario or the model, and so open another section: look again.
    for _ in range(len(SECTIONS) + 1):
        chosen = {key: flat.get(key, getattr(Config, key, None)) for key in SECTIONS.values()}
        has_presets = chosen["method"] == options.CERTIFIES_ITSELF
        chosen["preset"] = flat.get("preset", Choice.preset) if has_presets else None
        levels = sorted(_levels(table, chosen), key=lambda level: level[0])  # the deeper section wins
        flat = {key: value for _, level in levels for key, value in level.items()} | changes
        flat["model"] = flat.get("model") or default_model(flat)
    return flat


def _levels(
    table: Mapping[str, Any], chosen: Mapping[str, Any], depth: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    yield depth, outside_sections(table)
    for section, key in SECTIONS.items():
        for name in section_names(key, chosen[key]):
            if name in table.get(section, {}):
                is_base = key == "preset" and name != chosen[key]
                set_by_preset = PRESETS[chosen[key]] if is_base else ()
                for level, flat in _levels(table[section][name], chosen, depth + 1):
                    yield level, {key: value for key, value in flat.items() if key not in set_by_preset}


def section_names(key: str, choice: Any) -> Sequence[str]:
    """The names of the sections that apply to a choice; none while the choice is open.

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
    """Inner tables as dotted keys, and the options of the method by their bare names.

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


def outside_sections(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a table that are in none of its sections, as `flatten` names them."""
    return flatten({key: value for key, value in table.items() if key not in SECTIONS})


def default_model(flat: Mapping[str, Any]) -> str | None:
    """The default model: a head on features, else an MLP; None while the stream is open."""
    stream = flat.get("stream", FIELDS["stream"].default)
    if not isinstance(stream, str):
        return None
    if "@" not in stream:
        return "mlp"
    return "multi-head" if flat.get("scenario") == "task-incremental" else "linear"


def is_declared(key: str) -> bool:
    """Whether a key is a field, or a key of one of its tables: every method has it."""
    table, dot, _ = key.partition(".")
    return table in TABLES if dot else key in FIELDS


def check(table: Mapping[str, Any], methods: Iterable[str] = METHODS) -> None:
    """Refuse unknown sections, and in any section unknown keys, and lists for keys that have one value in a run."""
    flat = outside_sections(table)
    chosen: Any = flat.get("method")
    chosen_methods = chosen if isinstance(chosen, Values) else [chosen]
    imported = [name for name in chosen_methods if isinstance(name, str) and ":" in name]
    names = sorted({name for method in [*methods, *imported] for name in options.types(method)})
    for key, value in flat.items():
        if not is_declared(key) and key not in names:
            raise unknown("key", key, [*FIELDS, *names])
        if type(value) is list and "." not in key and key not in LISTED:  # Values is another type
            raise UserError(f"{key} is a list; write it under [grid] to make a run of each of its values.")
    for section, choice in SECTIONS.items():
        for name, inner in table.get(section, {}).items():
            check_choice(choice, name)
            methods_of = {"methods": [name], "presets": [options.CERTIFIES_ITSELF]}
            check(inner, methods_of.get(section, methods))


def check_choice(key: str, name: str | None) -> None:
    """Refuse an unknown name; a stream may also be a file or features, and a method a class by its path."""
    if name is None or (key == "stream" and any(sign in name for sign in "@./\\")):
        return
    if key == "method":
        method(str(name))
        return
    streams = (*NAMES, *installed_names("streams"))
    names = {"stream": streams, "scenario": SCENARIOS, "model": MODELS, "preset": PRESETS}[key]
    if name not in names:
        raise unknown(key, name, names)
