"""Continual-learning methods: one file each, one protocol, one registry."""

from importlib import import_module
from typing import TYPE_CHECKING

from cop2l.errors import unknown

if TYPE_CHECKING:
    from cop2l.methods.protocol import Method

METHODS = {
    "cop2l": "cop2l.certify.learner:CoP2L",
    "finetuning": "cop2l.methods.finetuning:Finetuning",
    "replay": "cop2l.methods.replay:Replay",
    "der++": "cop2l.methods.der:DERPlusPlus",
    "icarl": "cop2l.methods.icarl:ICaRL",
    "gdumb": "cop2l.methods.gdumb:GDumb",
    "lwf": "cop2l.methods.lwf:LwF",
    "lamaml": "cop2l.methods.lamaml:LaMAML",
    "lfl": "cop2l.methods.lfl:LFL",
    "ewc": "cop2l.methods.ewc:EWC",
    "si": "cop2l.methods.si:SI",
    "cclis": "cop2l.methods.cclis:CCLIS",
    "csrel": "cop2l.methods.csrel:CSReL",
    "ncm": "cop2l.methods.ncm:NCM",
    "slda": "cop2l.methods.slda:SLDA",
    "ranpac": "cop2l.methods.ranpac:RanPAC",
    "joint": "cop2l.methods.joint:Joint",
}
"""Where each method lives, as module:class; a module is imported when its method is asked for."""

_ICARL_LINEAR = (
    "On a linear head iCaRL is herded nearest-mean: nothing below the head learns, so its training changes no "
    "prediction; choose model=mlp-head where it should matter."
)
REMARKS = {("icarl", "linear"): _ICARL_LINEAR}
"""What a method comes to on a model, where that is less than its name says."""


def method(name: str) -> "type[Method]":
    """The class of a method, from its name.

    >>> method("replay").__name__
    'Replay'
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, _, attribute = METHODS[name].partition(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found
