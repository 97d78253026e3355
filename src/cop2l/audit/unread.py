"""Copies that a part of the inputs hides: a row number that the model does not read makes equal examples look different."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cop2l.kernel.learning import answers, tensor
from cop2l.kernel.samples import Copies, Fields, blocks_of
from cop2l.kernel.verdict import Verdict
from cop2l.kernel.verify import Allowed


def check_unread(
    notes: Verdict, samples: Mapping[int, tuple[Any, ...]], model: nn.Module, allowed: Allowed
) -> None:
    """Look for copies once more, without the parts that no answer of the model depends on; the kernel looks at all parts."""
    unread = unread_parts(samples, model)
    if not unread:
        return
    copies, listed = Copies(next(model.parameters()).dtype), ", ".join(sorted(unread))
    for task, (x, y, *_) in sorted(samples.items()):
        read = {name: part for name, part in x.parts.items() if name not in unread}
        repeated, shared = copies.add(Fields(read), y)
        if repeated > allowed.repeated * len(y) or shared > allowed.shared:
            notes.doubt(
                f"Without {listed}, which the model does not read, {repeated} of the {len(y)} rows of task {task} repeat "
                f"another, and {shared} are rows of an earlier task."
            )


def unread_parts(samples: Mapping[int, tuple[Any, ...]], model: nn.Module) -> set[str]:
    """The parts whose rows can change places without changing one bit of an answer; none if the model reads none at all."""
    if not all(isinstance(x, Fields) for x, *_ in samples.values()):
        return set()
    every = {name for x, *_ in samples.values() for name in x.parts}
    unread = set(every)
    for x, y, *_ in samples.values():
        for block, _ in blocks_of(x, y):
            unread -= {name for name in unread if not _same(model, block, name)}
            if not unread:
                return unread
    return unread if unread < every else set()


def _same(model: nn.Module, block: Fields, name: str) -> bool:
    """Whether the answers stay the same where one part has the rows of other examples."""

    def logits(moved: str) -> Any:
        parts = {key: tensor(part) for key, part in block.parts.items()}
        # a model may write into what it is given
        return answers(model, Fields({key: part.roll(int(key == moved), 0) for key, part in parts.items()}))

    with torch.no_grad():
        return torch.equal(logits(""), logits(name))
