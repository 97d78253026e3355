"""Streams of tasks: sources of labelled data, and its split into tasks.

A name is imported when it is first used, so that `import cop2l.streams` imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cop2l.streams.clouds import synthetic
    from cop2l.streams.datasets import DATASETS
    from cop2l.streams.folders import home
    from cop2l.streams.loading import NAMES, catalogue, labelled, load
    from cop2l.streams.own import from_arrays
    from cop2l.streams.pictures import Pictures
    from cop2l.streams.scenarios import Labelled, split_into_tasks
    from cop2l.streams.task import SCENARIOS, Stream, Task, fingerprint

_MODULES = {
    "clouds": ("synthetic",),
    "datasets": ("DATASETS",),
    "folders": ("home",),
    "loading": ("NAMES", "catalogue", "labelled", "load"),
    "own": ("from_arrays",),
    "pictures": ("Pictures",),
    "scenarios": ("Labelled", "split_into_tasks"),
    "task": ("SCENARIOS", "Stream", "Task", "fingerprint"),
}
"""The modules of the public names."""

__all__ = [
    "DATASETS",
    "NAMES",
    "SCENARIOS",
    "Labelled",
    "Pictures",
    "Stream",
    "Task",
    "catalogue",
    "fingerprint",
    "from_arrays",
    "home",
    "labelled",
    "load",
    "split_into_tasks",
    "synthetic",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"cop2l.streams.{module}"), name)
    raise AttributeError(f"module 'cop2l.streams' has no attribute {name!r}")
