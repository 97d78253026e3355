"""A run that several ranks share, started by torchrun: all ranks learn and count, and rank 0 alone writes and prints."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from cop2l.certify.commitment import commitment_hash
from cop2l.certify.ranks import LOST, Ranks
from cop2l.errors import Advice, UserError
from cop2l.experiments import measure
from cop2l.experiments.config import Config
from cop2l.experiments.directory import RunDirectory
from cop2l.experiments.environment import threads
from cop2l.experiments.learners import load_stream, new_learner
from cop2l.experiments.options import CERTIFIES_ITSELF
from cop2l.files import last_complete
from cop2l.streams.withhold import withhold

MINUTES = 30.0
"""A rank that does not answer for this time is lost; COP2L_RANKS_MINUTES changes it."""
FINISHED = -1
"""What rank 0 sends instead of a number of tasks if the run is finished."""


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def join_ranks() -> Iterator[Ranks | None]:
    """The ranks that torchrun started, or None. If they fail, only the first rank that notices prints an error."""
    if not is_launched():
        yield None
        return
    store = _join()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    try:
        yield Ranks()
    except (UserError, OSError, KeyboardInterrupt) as error:
        if not _is_first(store):
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None
        raise
    except SystemExit as end:  # torchrun stops all ranks once one has ended
        if end.code and _is_first(store):
            print(f"cop2l: {LOST}", file=sys.stderr, flush=True)
        raise
    finally:
        dist.destroy_process_group()


def _join() -> Any:
    """Set up the group of all ranks, and return their store."""
    try:
        limit = timedelta(minutes=float(os.environ.get("COP2L_RANKS_MINUTES", MINUTES)))
        store, rank, size = next(rendezvous("env://", timeout=limit))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The ranks cannot be joined ({reason}); see docs/integrations.md.") from error
    return store


def _is_first(store: Any) -> bool:
    """Whether no other rank has printed the error; True if the store does not answer. Ignores SIGTERM from now on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        store.set_timeout(timedelta(seconds=10))
        return bool(store.add("errors", 1) == 1)
    except RuntimeError:
        return True


def check(config: Config) -> None:
    """Refuse a method that ranks cannot share."""
    if config.method != CERTIFIES_ITSELF:
        raise UserError(f"Only method=cop2l can be shared by ranks; run {config.method} without torchrun.")


def send_progress(ranks: Ranks | None, number: int) -> None:
    """Send the number of learned tasks, or FINISHED, from rank 0 to the others."""
    if ranks is not None:
        ranks.gather(np.array([number]))


def follow(
    config: Config, folder: str | Path, ranks: Ranks, commitment: dict[str, Any] | None = None
) -> None:
    """Learn and count as `run` does, on every other rank; print and write nothing."""
    learned = int(ranks.gather(np.array([0]))[0, 0])
    if learned == FINISHED:
        return
    with threads(config.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", Advice)
        stream = load_stream(config)
        commitment_digest = None if commitment is None else commitment_hash(commitment)
        learner: Any = new_learner(config, stream, commitment_digest)
        learner.engine.ranks = ranks
        if learned:
            state = last_complete(RunDirectory(folder).state)
            if not state.exists():
                raise UserError(
                    f"Rank {ranks.rank} cannot read {state}; put the run directory where every rank can read it."
                )
            learner.restore(state)
        for task in stream[learned:]:
            part, _ = withhold(task, config.holdout, config.seed)
            learner.learn(
                part.x, part.y, progress=False, **measure.learn_kwargs(learner, stream, task.t, config)
            )
            if measure.due_kind(learner, stream, config) not in (None, "holdout"):
                learner.certify(measure.learned_from(learner, stream, config))
