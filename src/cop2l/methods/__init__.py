"""Continual-learning methods: one file each, one protocol."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from cop2l.errors import unknown

if TYPE_CHECKING:
    from cop2l.methods.protocol import Method

SHARED = ("base", "buffer", "frozen", "protocol", "representation", "sgd")
"""The files of this folder that are no method; every other one is, and bears its name."""
METHODS = {"cop2l": "cop2l.certify.learner"} | {
    file.name: f"cop2l.methods.{file.name}" for file in iter_modules(__path__) if file.name not in SHARED
}
"""The module of each method, which is imported when its method is asked for."""
METHODS["der++"] = METHODS.pop("der")  # no file of Python's can bear this name

_ICARL_LINEAR = (
    "On a linear head iCaRL is herded nearest-mean: nothing below the head learns, so its training changes no "
    "prediction; choose model=mlp-head where it should matter."
)
REMARKS = {("icarl", "linear"): _ICARL_LINEAR}
"""What a method comes to on a model, where that is less than its name says."""


def method(name: str) -> "type[Method]":
    """The class of a method: the one in its module that learns.

    >>> method("lamaml").__name__
    'LaMAML'
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module = import_module(METHODS[name])
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    found: type[Method]
    (found,) = (value for value in own if hasattr(value, "learn"))
    return found
