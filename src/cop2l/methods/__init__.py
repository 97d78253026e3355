"""Continual-learning methods: one file each."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from cop2l.errors import UserError, unknown
from cop2l.plugins import imported, installed_names

if TYPE_CHECKING:
    from cop2l.methods.protocol import Method

SHARED = ("base", "buffer", "frozen", "protocol", "representation", "sgd")
"""The files of this folder that are no method; every other one is, and bears its name."""
OWN = {"cop2l": "cop2l.certify.learner"} | {
    file.name: f"cop2l.methods.{file.name}" for file in iter_modules(__path__) if file.name not in SHARED
}
OWN["der++"] = OWN.pop("der")  # no file of Python's can bear this name
METHODS = OWN | {name: path for name, path in installed_names("methods").items() if name not in OWN}
"""The module of each method (of an installed package: module:Class), which is imported when its method is asked for."""

_ICARL_LINEAR = (
    "On a linear head iCaRL is herded nearest-mean: nothing below the head learns, so its training changes no "
    "prediction; choose model=mlp-head where it should matter."
)
REMARKS = {("icarl", "linear"): _ICARL_LINEAR}
"""What a method comes to on a model, where that is less than its name says."""


def method(name: str) -> "type[Method]":
    """The class of a method: the one in its module that learns; or any class by its path, package.module:Class.

    >>> method("lamaml").__name__, method("cop2l.methods.replay:Replay").__name__
    ('LaMAML', 'Replay')
    """
    if name not in METHODS and ":" not in name:
        raise unknown("method", name, METHODS)
    path = METHODS.get(name, name)
    found: type[Method]
    if ":" in path:
        found = imported(path)
        if not hasattr(found, "learn") or not hasattr(found, "Options"):
            raise UserError(f"{path} is no method: derive the class from cop2l.methods.base.Learner.")
        return found
    module = import_module(path)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    (found,) = (value for value in own if hasattr(value, "learn"))
    return found


def predicts_with_its_model(name: str) -> bool:
    """Whether a method's answer is the largest logit of its model, so that the model alone is the predictor.

    >>> predicts_with_its_model("cop2l"), predicts_with_its_model("replay"), predicts_with_its_model("ncm")
    (True, True, False)
    """
    from cop2l.methods.base import Learner

    if name not in METHODS:
        return False
    found = method(name)
    plain = issubclass(found, Learner) and (found.predict, found.logits) == (Learner.predict, Learner.logits)
    return name == "cop2l" or plain
