"""What a user gives as examples, in usable form; every wrong input is refused in one sentence."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.errors import UserError


def inputs(x: Any) -> Any:
    """X as a tensor that shares its memory, or the memory map that it is."""
    if isinstance(x, Tensor):
        return x.detach()
    x = _array(x, "x must be an array of numbers whose first dimension counts the examples.")
    if not x.flags.c_contiguous:
        return x if isinstance(x, np.memmap) else torch.from_numpy(np.ascontiguousarray(x))
    with (
        warnings.catch_warnings()
    ):  # a read-only array, such as a memory map, is shared: nothing here writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x)


def labels(y: Any) -> Tensor:
    """Y as 64-bit integers on the CPU."""
    wanted = "y must be a one-dimensional array of integer class numbers."
    found = y.detach().cpu() if isinstance(y, Tensor) else torch.from_numpy(np.array(_array(y, wanted)))
    if found.dim() != 1 or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise UserError(wanted)
    return found.to(torch.int64)


def check_finite(x: Any) -> None:
    """Refuse NaN and infinite values."""
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096]
        part = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        if not part.is_floating_point() or bool(torch.isfinite(part.sum())):
            continue  # a sum with a NaN or an infinite part is never finite, and a sum is quicker
        if not bool(torch.isfinite(part).all()):
            raise UserError("x contains NaN or infinite values; clean the data first.")


def _array(values: Any, wanted: str) -> np.ndarray:
    """An array that torch can take: numbers, in this machine's byte order."""
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError):
        raise UserError(wanted) from None
    if array.ndim == 0:
        raise UserError(wanted)
    return array
