"""Runs that differ in their seed alone, in one process: side by side on a CUDA device, else one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cop2l.certify.together import side_by_side
from cop2l.errors import UserError
from cop2l.experiments.config import Config
from cop2l.experiments.environment import threads
from cop2l.experiments.learners import device, load_stream
from cop2l.experiments.options import CERTIFIES_ITSELF
from cop2l.experiments.run import run
from cop2l.experiments.watch import Watcher, Watchers
from cop2l.streams.task import Stream


def run_seeds(
    configs: Sequence[Config], folders: Sequence[Path], watchers: Sequence[Sequence[Watcher]]
) -> list[dict[str, Any]]:
    """The summary of each run; a run has the records and certificates that it has alone, but for seconds and memory.

    An interruption stops all; each goes on after its last finished task when it is run again.
    """
    held: list[Stream] = []

    def load(config: Config) -> Stream:
        if not held:  # the stream has seeds of its own
            held.append(load_stream(config))
        return held[0]

    if len({replace(config, seed=0).hash for config in configs}) > 1:
        raise UserError("These runs differ in more than their seed; use cop2l sweep.")
    works = [
        partial(run, config, folder, watching, load=load)
        for config, folder, watching in zip(configs, folders, watchers, strict=True)
    ]
    try:
        if not share_a_device(configs[0]):
            return [work() for work in works]
        with threads(configs[0].threads):
            ends = side_by_side(works, device(configs[0]))
    finally:
        for watching in watchers:  # of seeds that did not begin, too
            Watchers(watching).close()
    for config, end in zip(configs, ends, strict=True):
        if isinstance(end, UserError):
            raise UserError(f"Seed {config.seed}: {end}")
        if isinstance(end, BaseException):
            raise end
    return ends


def share_a_device(config: Config) -> bool:
    """Whether seeds go side by side: on CUDA, by CoP2L; other methods do not fix torch's settings, which all threads share."""
    return device(config).type == "cuda" and config.method == CERTIFIES_ITSELF
