"""Continual learning that certifies itself.

Names are imported when they are first used, so that `import cop2l` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cop2l._version import __version__

if TYPE_CHECKING:
    from cop2l.audit.verify import verify
    from cop2l.exporting import export
    from cop2l.holdout.holdout import Holdout
    from cop2l.learner.cop2l import CoP2L
    from cop2l.methods.weighted_replay import WeightedReplay
    from cop2l.monitor.monitor import Monitor
    from cop2l.planning import plan

_MODULES = {
    "CoP2L": "cop2l.learner.cop2l",
    "Holdout": "cop2l.holdout.holdout",
    "Monitor": "cop2l.monitor.monitor",
    "WeightedReplay": "cop2l.methods.weighted_replay",
    "export": "cop2l.exporting",
    "plan": "cop2l.planning",
    "verify": "cop2l.audit.verify",
}

__all__ = ["CoP2L", "Holdout", "Monitor", "WeightedReplay", "__version__", "export", "plan", "verify"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'cop2l' has no attribute {name!r}")
