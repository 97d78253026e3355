"""A run that several ranks share, started by torchrun: all ranks learn, and rank 0 alone measures, writes and prints."""

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from cop2l.certificates.commitment import commitment_hash
from cop2l.errors import Advice, UserError
from cop2l.experiments import measure
from cop2l.experiments.config import Config
from cop2l.experiments.directory import RunDirectory
from cop2l.experiments.learners import load_stream, new_learner
from cop2l.experiments.options import CERTIFIES_ITSELF
from cop2l.files import last_complete
from cop2l.learner.ranks import LOST, Ranks
from cop2l.learner.state import threads


@contextmanager
def join_ranks() -> Iterator[Ranks | None]:
    """The ranks that torchrun started, or None. If they fail, only the first one that notices says why."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield None
        return
    store = _join()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    try:
        yield Ranks()
    except BaseException as error:
        if not _is_first_error(store):
            raise SystemExit(2) from None
        if isinstance(error, SystemExit):  # torchrun stops all ranks once one has ended
            raise UserError(LOST) from None
        raise
    finally:
        dist.destroy_process_group()


def _join() -> Any:
    """Set up the group of all ranks, and return their store."""
    try:
        limit = timedelta(minutes=float(os.environ.get("COP2L_RANKS_MINUTES", "30")))
        store, rank, size = next(rendezvous("env://", timeout=limit))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The ranks cannot be joined ({reason}); see docs/integrations.md.") from error
    return store


def _is_first_error(store: Any) -> bool:
    """Whether no other rank has failed before; True if the store does not answer. Ignores SIGTERM from now on."""
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


def follow(
    config: Config, folder: str | Path, ranks: Ranks, commitment: dict[str, Any] | None = None
) -> None:
    """Learn what rank 0 learns in `run`, on another rank; measure, print and write nothing."""
    directory = RunDirectory(folder)
    if directory.summary() is not None:
        return
    learned = ranks.broadcast(0)
    digest = None if commitment is None else commitment_hash(commitment)
    with threads(config.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", Advice)
        stream = load_stream(config)
        learner: Any = new_learner(config, stream, digest)
        learner.engine.ranks = ranks
        if learned:
            learner.restore(last_complete(directory.state))
        for task in stream[learned:]:
            x, y, learn_kwargs = measure.learned_part(stream, task.t, config)
            learner.learn(x, y, **learn_kwargs)
