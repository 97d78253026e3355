"""Several processes, the ranks of torch.distributed, share the work on one learner; each ends with the bits of one process alone.

Every rank has the same task and makes the same calls. The pool is split between whole blocks, so that every row is scored in the
block and the place that it has in one process; each rank scores its own blocks. What travels in an iteration is each rank's
largest losses, where they stand, and how many errors it counted: from these every rank picks the same block, and trains on
it as if alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cop2l.certify import scoring
from cop2l.certify.scoring import Candidates, Top
from cop2l.errors import UserError
from cop2l.kernel.exact import Examples, block_rows, digest, machine
from cop2l.kernel.learning import set_tensors
from cop2l.kernel.options import Options

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

LOST = (
    "Another rank ended or did not answer in time, or all were stopped; run the same command again to go on after the last "
    "finished task."
)


class Ranks:
    """The processes of a group (by default of all), which is set up: gloo, or nccl with a device for each."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_initialized():
            raise UserError("There are no ranks: start with torchrun, and call init_process_group first.")
        self._group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self._place = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        self.sent = 0
        """How many bytes this rank has sent to each of the others."""

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes and speaks."""
        return self.rank == 0

    def gather(self, row: np.ndarray) -> np.ndarray:
        """Every rank's row, which are of one kind and length, in the order of ranks."""
        mine = torch.from_numpy(row).to(self._place)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            dist.all_gather(every, mine, group=self._group)
        except RuntimeError as error:
            raise UserError(LOST) from error
        self.sent += row.nbytes
        return torch.stack(every).cpu().numpy()

    def check_agreement(self, learner: "CoP2L", more: Mapping[str, Any]) -> None:
        """Refuse to go on where a rank has something else: then bits would differ, or ranks wait for each other."""
        facts = {
            "options": learner.options,
            "scenario": learner.scenario,
            "threads": learner.state.threads,
            "machine": machine(learner.model),
            "parameters": digest(learner.model.state_dict()),
            "past tasks": digest(set_tensors(learner.engine.sets)),
            **more,
        }
        hashes = b"".join(hashlib.sha256(repr(value).encode()).digest() for value in facts.values())
        every = self.gather(np.frombuffer(hashes, np.uint8).copy()).reshape(self.size, len(facts), -1)
        if names := [
            name for name, found in zip(facts, every.swapaxes(0, 1), strict=True) if (found != found[0]).any()
        ]:
            raise UserError(
                f"The ranks do not have the same {', '.join(names)}; give the same to every rank."
            )

    def union(self, masks: Sequence[np.ndarray]) -> None:
        """Each mask becomes True where it is on any rank."""
        every = np.bitwise_or.reduce(self.gather(np.packbits(np.concatenate(masks))))
        whole = np.unpackbits(every, count=sum(len(mask) for mask in masks)).astype(bool)
        for mask, found in zip(
            masks, np.split(whole, np.cumsum([len(mask) for mask in masks])), strict=False
        ):
            mask[:] = found

    def shares(self, x: Any, lengths: Sequence[int]) -> list[slice]:
        """Which rows of each part of a pool are this rank's: all parts together are split between blocks, about evenly."""
        size = block_rows(x)
        blocks = [-(-length // size) for length in lengths]
        first, last = (sum(blocks) * rank // self.size for rank in (self.rank, self.rank + 1))
        found, before = [], 0
        for length, count in zip(lengths, blocks, strict=True):
            start, end = (min(max(at - before, 0) * size, length) for at in (first, last))
            found.append(slice(start, end))
            before += count
        return found

    def misclassified(self, model: nn.Module, part: Examples, masked_classes: Tensor | None) -> np.ndarray:
        """Which examples are misclassified."""
        (own,), wrong = self.shares(part.x, [len(part)]), np.zeros(len(part), bool)
        if own.start < own.stop:
            wrong[own] = scoring.misclassified(model, _rows(part, own), masked_classes)
        self.union([wrong])
        return wrong

    def candidates(self, *pool: Any) -> "SharedCandidates":
        """The pool of mP2L, with the arguments of `scoring.Candidates`."""
        return SharedCandidates(self, *pool)


def _rows(part: Examples, own: slice) -> Examples:
    """A rank's rows, on the device, unless x is a memory map."""
    x = part.x[own].to(part.y.device) if isinstance(part.x, Tensor) else part.x[own]
    return replace(part, x=x, y=part.y[own], task=part.task[own], row=part.row[own], mark=part.mark[own])


class SharedCandidates:
    """The pool of mP2L: this rank's blocks are scored here, and the largest losses of all ranks compared."""

    def __init__(
        self,
        ranks: Ranks,
        model: nn.Module,
        S: Examples,
        B: Examples | None,
        mask: np.ndarray,
        masked_classes: Tensor | None,
        options: Options,
    ) -> None:
        self._ranks, self._k, parts = ranks, options.k, [S] if B is None else [S, B]
        own = ranks.shares(S.x, [len(part) for part in parts])
        mine = [_rows(part, rows) for part, rows in zip(parts, own, strict=True)]
        self._own = Candidates(
            model, mine[0], mine[1] if B is not None else None, mask[own[0]], masked_classes, options
        )
        self._marks = np.concatenate([part.mark for part in parts])
        starts = np.cumsum([0, *(len(part) for part in parts)])
        places = [np.arange(s + rows.start, s + rows.stop) for s, rows in zip(starts, own, strict=False)]
        self._places = np.concatenate(places)  # of this rank's rows among all, in ascending order

    def top(self) -> Top:
        """The same on every rank."""
        worst, errors, block = self._own.top()
        k, count = self._k, len(block)
        row = np.full(2 + 2 * k, -1.0)
        row[:2] = worst, errors
        row[2 : 2 + count] = self._own.losses_at(block)
        row[2 + k : 2 + k + count] = self._places[block]
        every = self._ranks.gather(row)
        losses, places = every[:, 2 : 2 + k].ravel(), every[:, 2 + k :].ravel().astype(np.int64)
        losses, places = losses[places >= 0], places[places >= 0]
        order = np.lexsort((places, self._marks[places], -losses))[:k]  # ties as in one process
        return float(every[:, 0].max()), int(every[:, 1].sum()), places[order]

    def close(self, block: np.ndarray) -> None:
        """These are picked, by whichever rank, and never again."""
        at, behind = (np.searchsorted(self._places, block, side) for side in ("left", "right"))
        self._own.close(at[at < behind])


class ErrorCount(scoring.ErrorCount):
    """Which examples of many tasks are misclassified: what one process scores in one go, one of the ranks does, in turn."""

    def __init__(self, ranks: Ranks, model: nn.Module, masked_classes: Tensor | None) -> None:
        super().__init__(model, masked_classes)
        self._ranks, self._turn = ranks, 0

    def finish(self) -> None:
        """Score what is waiting, if it is this rank's turn."""
        if self._turn % self._ranks.size != self._ranks.rank:
            self._waiting = []
        self._turn += 1
        super().finish()
