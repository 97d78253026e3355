"""The logits of examples in whole blocks, as `cop2l.kernel.exact.score` computes them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cop2l.kernel.exact import WIDTH, PaddedLinear, block_rows, model_input, pad_rows, tensor
from cop2l.kernel.models import MODELS


@contextmanager
def scoring_mode(model: nn.Module) -> Iterator[None]:
    """Inside: evaluation mode, no gradients, and padded linear layers if a width of the model needs them."""
    training = [module for module in model.modules() if module.training]
    narrow = not is_builtin_model(model) or any(
        p.dim() == 2 and p.shape[1] % WIDTH for p in model.parameters()
    )
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), PaddedLinear() if narrow else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True


def is_builtin_model(model: nn.Module) -> bool:
    """Whether it is an unchanged model of cop2l: it never writes into its input, and its parameters show all widths of layers."""
    return type(model) in MODELS.values() and all(
        type(module).__module__.startswith(("cop2l.kernel.", "torch.nn.modules."))
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not getattr(module, "inplace", False)
        for module in model.modules()
    )


def row_major(x: Tensor) -> bool:
    """Whether x has the plain memory layout. Kernels may round other layouts (channels last) differently."""
    return x.stride() == torch.empty(x.shape, dtype=x.dtype, device="meta").stride()


def input_blocks(model: nn.Module, x: Any, size: int | None = None) -> Iterator[Any]:
    """The inputs in blocks of `size` rows on the model's device, padded with zeros. A block lasts until the next one.

    A model of the user's own gets copies, because it may write into its input.
    """
    size, is_builtin, memory = size or block_rows(x), is_builtin_model(model), None
    for start in range(0, len(x), size):
        rows = model_input(model, tensor(x[start : start + size]))
        if not (is_builtin and len(rows) == size) or rows.data_ptr() % 64 or not row_major(rows):
            if memory is None:
                memory = rows.new_empty((size, *rows.shape[1:]))
            rows = pad_rows(rows, size, memory)
        yield rows if is_builtin else rows.detach()  # the model may reshape its input


def outputs(
    model: nn.Module, x: Any, task: int | None = None, masked_classes: Tensor | None = None
) -> Iterator[Tensor]:
    """The logits, block by block, on the CPU; those outside the head of the task are minus infinity.

    A few examples are not padded to a whole block: predictions need fewer rows, and only errors are counted in whole blocks.
    """
    remaining = len(x)
    with scoring_mode(model):
        for rows in input_blocks(model, x, min(remaining, block_rows(x))):
            logits = model(rows)[:remaining]
            remaining -= len(rows)
            if task is not None and masked_classes is not None:
                logits = logits.masked_fill(masked_classes[task], -torch.inf)
            yield logits.cpu()
