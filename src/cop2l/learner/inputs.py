"""Reads the examples that a user gives, and refuses wrong ones in one sentence.

The same examples give the same bits in an array, a tensor, a memory map, a sparse matrix, a data frame (pandas, polars), a
Hugging Face data set, a torch Dataset and a DataLoader.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from cop2l.errors import UserError
from cop2l.kernel.samples import ROWS, blocks_of
from cop2l.streams.tables import refuse_columns

LABEL = "label"
"""The column of the labels, unless another one is named; it is never an input."""
Block = tuple[Any, Any]


class SparseRows:
    """A sparse matrix with the interface of an array; only the rows that are read become dense."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix.tocsr()
        self.shape, self.dtype = tuple(matrix.shape), matrix.dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return np.asarray(self._matrix[rows].toarray())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._matrix.toarray(), dtype)


def labelled(x: Any, y: Any = None) -> Block:
    """Inputs that can be sliced by rows, and labels: y, or the column of x that y names, or the labels that x holds."""
    if isinstance(x, str | Path):
        raise UserError(
            f"x is the path {str(x)!r}; load its examples first: streams.load({str(x)!r}, label=...)."
        )
    x, labels = (x, None) if reader(x) is None else _joined(_read(x, y))
    if y is None or isinstance(y, str):
        if labels is None:
            raise _missing_labels(y)
        y = labels
    return _rows(x), y


def features(x: Any, columns: Sequence[str] | None = None) -> Any:
    """Inputs that can be sliced by rows, without labels, and with named columns in the order that was learned."""
    x = by_name(x, None, columns)[0]
    return _rows(x if reader(x) is None else _joined(_read(x, None))[0])


def by_name(x: Any, y: Any, columns: Sequence[str] | None) -> tuple[Any, list[str] | None]:
    """A frame or a Hugging Face data set with its columns in the order that was learned, and their names without the label.

    Columns that are missing, or were not learned, are refused. Other collections of examples are returned as they are.
    """
    is_table = reader(x) in (_from_frame, _from_hugging_face) and hasattr(x, "__len__")
    if not is_table or isinstance(x, Mapping):
        return x, None if columns is None else list(columns)
    label = y if isinstance(y, str) else LABEL
    keys = list(x.column_names if hasattr(x, "column_names") else x.columns)
    inputs = {str(key): key for key in keys if key not in (label, LABEL)}
    if columns is None or list(inputs) == list(columns):
        return x, list(inputs)
    missing = [name for name in columns if name not in inputs]
    additional = [name for name in inputs if name not in columns]
    refuse_columns("x", missing, additional, columns)
    order = [key for key in keys if key in (label, LABEL)] + [inputs[name] for name in columns]
    return (x.select_columns(order) if hasattr(x, "select_columns") else x[order]), list(columns)


def blocks(x: Any, y: Any = None) -> Iterator[Block]:
    """The same as `labelled`, block by block, so that a Dataset need not fit into memory."""
    if reader(x) is None or not (y is None or isinstance(y, str)):
        yield from blocks_of(*labelled(x, y))
        return
    for rows, labels in _read(x, y):
        if labels is None:
            raise _missing_labels(y)
        yield rows, labels


def inputs(x: Any) -> Any:
    """The tensor of x, which shares its memory where it can; a sparse matrix and some memory maps stay what they are."""
    x = _rows(x)
    if not isinstance(x, Tensor | SparseRows):
        x = _array(x, "x must be an array of numbers whose first dimension counts the examples.")
    if "complex" in str(x.dtype) or "float8" in str(x.dtype):
        raise UserError("x must hold whole numbers, or real numbers of at least 16 bits; convert it.")
    if isinstance(x, Tensor | SparseRows):
        return x
    if not x.flags.c_contiguous:
        return x if isinstance(x, np.memmap) else torch.from_numpy(np.ascontiguousarray(x))
    with warnings.catch_warnings():  # a read-only array may be shared, because nothing here writes into it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x)


def labels(y: Any) -> Tensor:
    """Labels as 64-bit integers on the CPU."""
    message = "y must be a one-dimensional array of class numbers."
    if not isinstance(y, Tensor) and isinstance(next(iter(np.ravel(np.asarray(y))), None), str):
        raise UserError(f"y must be class numbers, and holds names; {numbering(y)}.")
    column = y.detach().cpu() if isinstance(y, Tensor) else torch.from_numpy(np.array(_array(y, message)))
    if column.dim() != 1 or column.is_floating_point() or column.is_complex() or column.dtype == torch.bool:
        raise UserError(message)
    return column.to(torch.int64)


def numbering(y: Any) -> str:
    """The advice for labels that are names, or numbers with gaps.

    >>> numbering(["dog", "cat", "dog"])
    "number them by the sorted list of all classes that will ever come: learn(x, numpy.searchsorted(['cat', 'dog'], y))"
    """
    names = sorted({*np.asarray(y).tolist()}, key=str)
    classes = names if len(names) <= 20 else "CLASSES"
    return f"number them by the sorted list of all classes that will ever come: learn(x, numpy.searchsorted({classes}, y))"


def wrong_shape(model: Any, x: Any) -> str | None:
    """The message for inputs that a model failed on, if they have another shape than it was built for; else None."""
    expected = getattr(model, "description", {}).get("inputs")
    if expected is None or tuple(expected) == tuple(x.shape[1:]):
        return None
    return (
        f"The model takes inputs of shape {tuple(expected)}, not {tuple(x.shape[1:])}; give what it was built for, one row per"
        " example."
    )


def check_finite(x: Any) -> None:
    """Refuse NaN and infinite values."""
    for block, _ in blocks_of(x, x):
        values = block if isinstance(block, Tensor) else torch.from_numpy(np.array(block))
        # a sum of finite values may be infinite
        if values.is_floating_point() and not (values.sum().isfinite() or values.isfinite().all()):
            raise UserError("x contains NaN or infinite values; clean the data first.")


def _rows(x: Any) -> Any:
    """The same inputs, in a form that can be sliced by rows."""
    if isinstance(x, Mapping | tuple):
        raise UserError(
            "x holds several arrays, and an example must be one: put them side by side with cop2l.models.pack, and wrap the"
            " model in cop2l.models.Unpacked."
        )
    if isinstance(x, Tensor):
        return (x if x.layout == torch.strided else x.to_dense()).detach()
    return SparseRows(x) if hasattr(x, "tocsr") else x


def short_reason(error: BaseException) -> str:
    """One line about why a model failed, without torch's sizes of matrices, which are those of whole padded blocks.

    >>> short_reason(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2048x30 and 16x512)"))
    'a layer takes another number of values'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return "a layer takes another number of values" if "shapes cannot be multiplied" in line else line


def reader(x: Any) -> Any:
    """The function that reads x block by block; None if x is an array or a list."""
    if isinstance(x, DataLoader | Dataset):
        return _from_torch
    if hasattr(x, "column_names") and hasattr(x, "with_format"):
        return _from_hugging_face
    return _from_frame if hasattr(type(x), "columns") else None


def _read(x: Any, y: Any) -> Iterator[Block]:
    blocks: Iterator[Block] = reader(x)(x, y if isinstance(y, str) else LABEL)
    return blocks


def _from_torch(x: Any, label: str) -> Iterator[Block]:
    """Read a map-style Dataset in its own order, with the loader's batches and workers but not its shuffling."""
    loader = x if isinstance(x, DataLoader) else DataLoader(x, batch_size=ROWS)
    if isinstance(loader.dataset, IterableDataset):
        raise UserError("An IterableDataset has no fixed order; give a map-style Dataset, or arrays.")
    sampler = loader.sampler
    is_complete = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and len(sampler) == len(sampler.data_source)
    )
    if loader.batch_size is None or not is_complete:
        raise UserError(
            "The DataLoader draws with a sampler of its own; give the data set itself, or a Subset of it."
        )
    ordered = DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )
    if not len(ordered):
        raise UserError("The data set is empty; give at least one example.")
    try:
        yield from (_torch_block(batch, label) for batch in ordered)
    except (TypeError, RuntimeError) as error:  # of collate_fn
        reason = (str(error).splitlines() or [""])[0][:200]
        raise UserError(
            f"The examples do not fit into one array (give tensors of one shape): {reason}"
        ) from None


def _torch_block(batch: Any, label: str) -> Block:
    """The inputs and labels of a batch."""
    pair = batch if isinstance(batch, tuple | list) else (batch, None)
    if isinstance(batch, Mapping):
        pair = {name: batch[name] for name in batch if name != label}, batch.get(label)
    if len(pair) != 2:
        raise UserError(f"The data set gives {len(pair)} values for each example; it must give (x, y).")
    x, y = pair
    if isinstance(y, Mapping | tuple | list):
        raise UserError("The label of each example must be one class number, not several values.")
    return _rows(tuple(x) if isinstance(x, list) else x), y


def _from_hugging_face(x: Any, label: str) -> Iterator[Block]:
    if isinstance(x, Mapping):
        raise UserError(f"Choose one part of the data set: {', '.join(map(repr, x))}.")
    if not hasattr(x, "__len__"):
        raise UserError("A streamed data set has no fixed order; load it without streaming=True.")
    rows = x.with_format("numpy")
    for start in range(0, max(1, len(x)), ROWS):
        part = rows[start : start + ROWS]
        yield _columns({name: np.asarray(part[name]) for name in x.column_names}, label)


def _from_frame(x: Any, label: str) -> Iterator[Block]:
    if not hasattr(x, "__len__"):
        raise UserError("A lazy frame has no rows yet; collect() it first.")
    yield _columns({name: x[name].to_numpy() for name in x.columns}, label)


def _columns(columns: dict[Any, np.ndarray], label: str) -> Block:
    """The inputs and the labels of columns: the other columns side by side, or the only one if it holds arrays."""
    if label not in columns and label != LABEL:
        names = ", ".join(map(str, [*columns][:8])) + ", ..." * (len(columns) > 8)
        raise UserError(f"There is no column {label!r} for the labels; the columns are: {names}.")
    y = columns.get(label)
    x = {name: values for name, values in columns.items() if name not in (label, LABEL)}
    for name, values in x.items():
        if values.dtype.kind not in "biuf":
            raise UserError(
                f"The column {str(name)!r} does not hold numbers of one shape in every row; turn it into such, or leave it out."
            )
    if not x:
        raise UserError("There is no column of inputs beside the labels.")
    if all(values.ndim == 1 for values in x.values()):
        return np.column_stack(list(x.values())), y
    return _rows(next(iter(x.values())) if len(x) == 1 else x), y


def _joined(parts: Iterator[Block]) -> Block:
    xs, ys = zip(*parts, strict=True)
    try:
        x = torch.cat(xs) if isinstance(xs[0], Tensor) else np.concatenate(xs)
        return x, None if ys[0] is None else np.concatenate([np.asarray(y) for y in ys])
    except (RuntimeError, ValueError, KeyError):
        raise UserError("The examples have different shapes; bring them into one shape first.") from None


def _missing_labels(name: Any) -> UserError:
    if name is not None:
        return UserError(f"x has no column {name!r}; give the labels as an array.")
    return UserError(
        "There are no labels: give y, or x with a column named 'label', or a data set of (x, y) pairs."
    )


def _array(values: Any, message: str) -> np.ndarray:
    """An array that torch can take: numbers, in this machine's byte order; `message` refuses anything else."""
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError):
        raise UserError(message) from None
    if array.ndim == 0:
        raise UserError(message)
    return array
