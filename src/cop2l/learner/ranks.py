"""Lets several processes, the ranks of torch.distributed, score the pools of one learner, with the bits of one process.

Every rank has the same data and makes the same calls of `learn`. It scores some blocks of a pool, the same blocks as in one
process, and gets the losses and the errors of all rows, 5 bytes for each. So all ranks pick the same examples and train on them.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cop2l.errors import UserError
from cop2l.kernel.exact import Examples, block_rows, machine
from cop2l.text import listing

if TYPE_CHECKING:
    from cop2l.learner.cop2l import CoP2L

Scores = list[tuple[Tensor, np.ndarray]]
"""The losses and the errors of each part of a pool."""
LOST = (
    "Another rank ended or did not answer in time, or all were stopped; run the same command again to go on after the last "
    "finished task."
)


class Ranks:
    """All processes of the group that `torch.distributed.init_process_group("gloo")` set up."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            raise UserError("There are no ranks: start with torchrun, and call init_process_group first.")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes files and prints."""
        return self.rank == 0

    def add(self, rows: np.ndarray) -> np.ndarray:
        """Add to these rows, in place, those of the other ranks. Where one rank has a value, the others have zeros."""
        try:
            dist.all_reduce(torch.from_numpy(rows.view(np.uint8)))
        except RuntimeError as error:
            raise UserError(LOST) from error
        return rows

    def broadcast(self, number: int) -> int:
        """The number that rank 0 gives."""
        return int(self.add(np.array([number * self.is_first]))[0])

    def check_agreement(self, learner: "CoP2L", fingerprint: str, head: tuple[int, ...]) -> None:
        """Refuse the next task, which has this fingerprint and head, if ranks differ in what its bits depend on."""
        state = learner.state
        values = {
            "options": (learner.options, learner.scenario),
            "threads": state.threads,
            "machine": machine(learner.model),
            "parameters": state.theta_digest,
            "data": (*state.fingerprints, fingerprint),
            "classes": (*state.heads, head),
        }
        hashes = np.zeros((self.size, len(values)), "S64")
        hashes[self.rank] = [hashlib.sha256(repr(value).encode()).hexdigest() for value in values.values()]
        hashes = self.add(hashes)
        for rank, different in enumerate(hashes != hashes[0]):
            if names := [name for name, differs in zip(values, different, strict=True) if differs]:
                raise UserError(
                    f"Rank {rank} and rank 0 do not have the same {listing(names)}; give the same to every rank."
                )

    def shares(self, parts: Sequence[Examples]) -> list[slice]:
        """The rows of each part that this rank scores: whole blocks, divided about evenly over the whole pool."""
        size = block_rows(parts[0].x)
        ends = np.cumsum([0, *(-(-len(part) // size) for part in parts)])
        first, last = (ends[-1] * rank // self.size for rank in (self.rank, self.rank + 1))
        return [slice(max(first - before, 0) * size, max(last - before, 0) * size) for before in ends[:-1]]

    def score(self, score: Callable[[Sequence[Examples]], Scores], parts: Sequence[Examples]) -> Scores:
        """What `score` returns for these parts; this rank calls it with its own rows alone."""
        shares, scores = self.shares(parts), Scores()
        columns = zip(map(vars, parts), shares, strict=True)
        own = [Examples(**{name: rows[share] for name, rows in part.items()}) for part, share in columns]
        for part, share, (losses, errors) in zip(parts, shares, score(own), strict=True):
            rows = np.zeros(len(part), [("loss", f"f{losses.element_size()}"), ("error", bool)])
            rows["loss"][share], rows["error"][share] = losses.cpu(), errors
            rows = self.add(rows)
            scores.append((torch.from_numpy(rows["loss"].copy()), rows["error"]))
        return scores
