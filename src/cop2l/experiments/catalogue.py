"""The names that `cop2l list` prints, each with one line about it."""

import inspect
from importlib.resources import files

from cop2l.experiments.grid import builtin_names


def methods() -> dict[str, str]:
    from cop2l.methods import METHODS, method

    return {name: first_line(method(name)) for name in METHODS}


def models() -> dict[str, str]:
    from cop2l.models import MODELS

    return {name: first_line(cls) for name, cls in MODELS.items()}


def streams() -> dict[str, str]:
    """The data sets, and the features that are cached on this machine."""
    from cop2l import features
    from cop2l.streams import catalogue

    cached = {entry.name: "features, cached on this machine" for entry in features.entries()}
    return catalogue() | cached


def configs() -> dict[str, str]:
    """The built-in configurations, with the first comment of each."""
    folder = files("cop2l") / "configs"
    texts = {name: (folder / f"{name}.toml").read_text(encoding="utf-8") for name in builtin_names()}
    return {name: text.partition("\n")[0].removeprefix("#").strip() for name, text in texts.items()}


def first_line(cls: type) -> str:
    """The first sentence of a class's docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]
