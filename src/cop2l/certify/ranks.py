"""Lets several processes, the ranks of torch.distributed, share the work on one learner, with the bits of one process.

Every rank has the same task and makes the same calls. Each rank scores some of the blocks of the pool, so that every row has the
same block and the same place in it as in one process. In each iteration the ranks exchange their largest losses, the positions
of these, and their numbers of errors. From these every rank picks the same block, and trains on it.
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
    """All processes of torch.distributed, which is set up: gloo, or nccl with one device for each."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            raise UserError("There are no ranks: start with torchrun, and call init_process_group first.")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes files and prints."""
        return self.rank == 0

    def gather(self, row: np.ndarray) -> np.ndarray:
        """The rows of all ranks, in the order of ranks; all have the same type and length."""
        tensor = torch.from_numpy(row).to(self._device)
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        try:
            dist.all_gather(rows, tensor)
        except RuntimeError as error:
            raise UserError(LOST) from error
        return torch.stack(rows).cpu().numpy()

    def check_agreement(self, learner: "CoP2L", call: Mapping[str, Any]) -> None:
        """Refuse to go on if the ranks have different learners or make different calls."""
        values = {
            "options": learner.options,
            "scenario": learner.scenario,
            "threads": learner.state.threads,
            "machine": machine(learner.model),
            "parameters": digest(learner.model.state_dict()),
            "past tasks": digest(set_tensors(learner.engine.sets)),
            **call,
        }
        own_hashes = b"".join(hashlib.sha256(repr(value).encode()).digest() for value in values.values())
        hashes = self.gather(np.frombuffer(own_hashes, np.uint8).copy()).reshape(self.size, len(values), -1)
        different = (hashes != hashes[0]).any((0, 2))
        if names := [name for name, differs in zip(values, different, strict=True) if differs]:
            raise UserError(
                f"The ranks do not have the same {', '.join(names)}; give the same to every rank."
            )

    def union(self, masks: Sequence[np.ndarray]) -> None:
        """Set each mask to True where it is True on any rank."""
        bits = np.bitwise_or.reduce(self.gather(np.packbits(np.concatenate(masks))))
        ends = np.cumsum([len(mask) for mask in masks])
        union = np.unpackbits(bits, count=int(ends[-1])).astype(bool)
        for mask, part in zip(masks, np.split(union, ends), strict=False):
            mask[:] = part

    def shares(self, x: Any, lengths: Sequence[int]) -> list[slice]:
        """The rows of each part of a pool that this rank scores: whole blocks, divided about evenly over all parts."""
        size = block_rows(x)
        blocks = [-(-length // size) for length in lengths]
        first, last = (sum(blocks) * rank // self.size for rank in (self.rank, self.rank + 1))
        shares, before = [], 0
        for length, count in zip(lengths, blocks, strict=True):
            start, end = (min(max(block - before, 0) * size, length) for block in (first, last))
            shares.append(slice(start, end))
            before += count
        return shares

    def misclassified(self, model: nn.Module, part: Examples, masked_classes: Tensor | None) -> np.ndarray:
        (share,), errors = self.shares(part.x, [len(part)]), np.zeros(len(part), bool)
        if share.start < share.stop:
            errors[share] = scoring.misclassified(model, _rows(part, share), masked_classes)
        self.union([errors])
        return errors

    def candidates(self, *pool: Any) -> "SharedCandidates":
        """The pool of mP2L, with the arguments of `scoring.Candidates`."""
        return SharedCandidates(self, *pool)


def _rows(part: Examples, share: slice) -> Examples:
    """A rank's rows, on its device unless x is a memory map."""
    x = part.x[share].to(part.y.device) if isinstance(part.x, Tensor) else part.x[share]
    columns = {name: getattr(part, name)[share] for name in ("y", "task", "row", "mark")}
    return replace(part, x=x, **columns)


class SharedCandidates:
    """The pool of mP2L: this rank scores its own blocks, and compares the largest losses of all ranks."""

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
        shares = ranks.shares(S.x, [len(part) for part in parts])
        own_S, *own_B = [_rows(part, share) for part, share in zip(parts, shares, strict=True)]
        own_mask, pool_B = mask[shares[0]], own_B[0] if own_B else None
        self._candidates = Candidates(model, own_S, pool_B, own_mask, masked_classes, options)
        self._marks = np.concatenate([part.mark for part in parts])
        positions = np.split(np.arange(len(self._marks)), [len(S)])[: len(parts)]
        own = [rows[share] for rows, share in zip(positions, shares, strict=True)]
        self._positions = np.concatenate(own)  # of this rank's rows in the whole pool, ascending

    def top(self) -> Top:
        """The largest weighted loss, the number of errors, and the block of the k largest losses, the same on every rank."""
        worst, errors, block = self._candidates.top()
        k, count = self._k, len(block)
        row = np.full(2 + 2 * k, -1.0)
        row[:2] = worst, errors
        row[2 : 2 + count] = self._candidates.losses_at(block)
        row[2 + k : 2 + k + count] = self._positions[block]
        rows = self._ranks.gather(row)
        losses, positions = rows[:, 2 : 2 + k].ravel(), rows[:, 2 + k :].ravel().astype(np.int64)
        losses, positions = losses[positions >= 0], positions[positions >= 0]
        order = np.lexsort((positions, self._marks[positions], -losses))[:k]  # ties as in one process
        return float(rows[:, 0].max()), int(rows[:, 1].sum()), positions[order]

    def close(self, block: np.ndarray) -> None:
        """Take a picked block out of the pool; other ranks hold some of its rows."""
        left, right = (np.searchsorted(self._positions, block, side) for side in ("left", "right"))
        self._candidates.close(left[left < right])


class ErrorCount(scoring.ErrorCount):
    """Finds the misclassified examples of several tasks; the ranks take turns with the forward passes."""

    def __init__(self, ranks: Ranks, model: nn.Module, masked_classes: Tensor | None) -> None:
        super().__init__(model, masked_classes)
        self._ranks, self._turn = ranks, 0

    def finish(self) -> None:
        """Score the examples that are waiting, if it is this rank's turn."""
        if self._turn % self._ranks.size != self._ranks.rank:
            self._waiting = []
        self._turn += 1
        super().finish()
