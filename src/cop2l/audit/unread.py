"""Copies that a part of the inputs hides: a row number that no answer depends on makes equal examples look different."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.scoring import input_blocks, scoring_mode
from cop2l.kernel.exact import exact_arithmetic, tensor
from cop2l.kernel.samples import ROWS, Copies, numbers
from cop2l.kernel.verdict import Verdict
from cop2l.kernel.verify import Allowed

TRIED = 16
"""So many sets of numbers are tried, those first in which most of the examples that are answered alike differ."""


def check_unread(
    notes: Verdict, samples: Mapping[int, tuple[Any, ...]], model: nn.Module, allowed: Allowed
) -> None:
    """Look for copies once more, without the numbers that no answer of the model depends on; the kernel looks at all."""
    without, every = as_read([x for _, (x, *_) in sorted(samples.items())], model)
    copies = Copies(torch.float64)
    for task, x in zip(sorted(samples), every, strict=bool(every)):
        repeated, shared = copies.add(x, x)
        if repeated > allowed.repeated * len(x) or shared > allowed.shared:
            notes.doubt(
                f"Without {without}, which the model does not read, {repeated} of the {len(x)} rows of task {task} repeat "
                f"another, and {shared} are rows of an earlier task."
            )


def as_read(every: Sequence[Any], model: nn.Module) -> tuple[str, list[Tensor]]:
    """What the model does not read, in words, and all inputs without it; nothing where it reads all, or nothing."""
    with exact_arithmetic(torch.get_num_threads()):
        unread = unread_numbers(every, model)
    if not unread.any() or unread.all():
        return "", []
    kind, read = next(model.parameters()).dtype, torch.from_numpy(~unread)
    return f"{int(unread.sum())} of {len(unread)} numbers", [_flat(x, kind)[:, read] for x in every]


def unread_numbers(every: Sequence[Any], model: nn.Module) -> np.ndarray:
    """A mask of the numbers of an example that can change places between examples without changing one bit of an answer.

    Copies are answered alike: only numbers in which examples differ that are answered alike are tried.
    """
    logits, kind = [_logits(model, x) for x in every], next(model.parameters()).dtype
    found = np.zeros(_flat(every[0][:1], kind).shape[1], bool)
    differing = Counter(mask.tobytes() for mask in _differences(every, logits, kind))
    for mask, _ in differing.most_common(TRIED):
        more = found | np.frombuffer(mask, bool)
        if all(_same(model, x, own, more) for x, own in zip(every, logits, strict=True)):
            found = more
    return found


def _differences(every: Sequence[Any], logits: list[Tensor], kind: torch.dtype) -> Iterator[np.ndarray]:
    """Of each example that is answered like an earlier one, bit for bit: in which numbers it differs from the first such."""
    first = dict[bytes, tuple[Any, int]]()
    for x, own in zip(every, logits, strict=True):
        for row, answer in enumerate(numbers(own)):
            other, there = first.setdefault(answer.tobytes(), (x, row))
            if other is not x or there != row:
                yield (_flat(x[row : row + 1], kind) != _flat(other[there : there + 1], kind))[0].numpy()


def _logits(model: nn.Module, x: Any) -> Tensor:
    """The answers, in the fixed blocks in which they depend on no other example."""
    with scoring_mode(model):
        return torch.cat([model(rows).cpu() for rows in input_blocks(model, x)])[: len(x)]


def _same(model: nn.Module, x: Any, logits: Tensor, mask: np.ndarray) -> bool:
    """Whether the answers stay the same where each example has these numbers of its neighbour."""
    return all(
        torch.equal(_logits(model, _moved(x[start : start + ROWS], mask)), logits[start : start + ROWS])
        for start in range(0, len(x), ROWS)
    )


def _moved(x: Any, mask: np.ndarray) -> Tensor:
    """Rows, each with the masked numbers of the row before it."""
    rows = tensor(x).cpu()
    flat = rows[..., None].flatten(1)
    return torch.where(torch.from_numpy(mask), flat.roll(1, 0), flat).view(rows.shape)


def _flat(x: Any, kind: torch.dtype) -> Tensor:
    """All numbers of each example in one row, as a model of this precision sees them."""
    rows = tensor(x).cpu()[..., None].flatten(1)
    return (rows.to(kind) if rows.is_floating_point() else rows).double()
