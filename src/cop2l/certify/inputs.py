"""What a user gives as examples, in usable form; every wrong input is refused in one sentence.

Arrays, tensors, memory maps, sparse matrices, frames (pandas, polars), Hugging Face data sets, torch Datasets and
DataLoaders: the same examples give the same bits, whatever holds them.
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
"""The column that holds the labels, where none is named; it is never an input."""
Block = tuple[Any, Any]


class SparseRows:
    """A sparse matrix that is read like an array: only the rows that are asked for become dense."""

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
    """Inputs as rows that can be had in slices, and labels: y, or the column of x that y names, or what x says itself."""
    if isinstance(x, str | Path):
        raise UserError(
            f"x is the path {str(x)!r}; load its examples first: streams.load({str(x)!r}, label=...)."
        )
    if reader(x) is None:
        own = None
    else:
        x, own = _joined(_read(x, y))
    if y is None or isinstance(y, str):
        if own is None:
            raise _without_labels(y)
        y = own
    return _rows(x), y


def features(x: Any, columns: Sequence[str] | None = None) -> Any:
    """The inputs as rows that can be had in slices; labels are left out, and named columns come as they were learned."""
    x = by_name(x, None, columns)[0]
    return _rows(x if reader(x) is None else _joined(_read(x, None))[0])


def by_name(x: Any, y: Any, columns: Sequence[str] | None) -> tuple[Any, list[str] | None]:
    """A frame or a Hugging Face data set with its columns in the order that was learned, and their names without the label.

    Anything else stays as it is. Columns that are missing or were not learned are refused.
    """
    named = reader(x) in (_from_frame, _from_hugging_face) and hasattr(x, "__len__")
    if not named or isinstance(x, Mapping):
        return x, None if columns is None else list(columns)
    label = y if isinstance(y, str) else LABEL
    known = list(x.column_names if hasattr(x, "column_names") else x.columns)
    inputs = [name for name in known if name not in (label, LABEL)]
    names = [str(name) for name in inputs]
    if columns is None or names == list(columns):
        return x, names
    lacking, surplus = ([n for n in a if n not in b] for a, b in ((columns, names), (names, columns)))
    refuse_columns("x", lacking, surplus, columns)
    order = [name for name in known if name in (label, LABEL)] + [
        inputs[names.index(name)] for name in columns
    ]
    return (x.select_columns(order) if hasattr(x, "select_columns") else x[order]), list(columns)


def blocks(x: Any, y: Any = None) -> Iterator[Block]:
    """The same as `labelled`, block by block: what is read from a Dataset need not fit into memory."""
    if reader(x) is None or not (y is None or isinstance(y, str)):
        yield from blocks_of(*labelled(x, y))
        return
    for part, own in _read(x, y):
        if own is None:
            raise _without_labels(y)
        yield part, own


def inputs(x: Any) -> Any:
    """X as a tensor that shares its memory, or the memory map or sparse matrix that it is."""
    x = _rows(x)
    if not isinstance(x, Tensor | SparseRows):
        x = _array(x, "x must be an array of numbers whose first dimension counts the examples.")
    kind = str(x.dtype) if isinstance(x, Tensor) else x.dtype.kind  # numpy takes its time for a name
    if kind == "c" or "complex" in kind or "float8" in kind:
        raise UserError("x must hold whole numbers, or real numbers of at least 16 bits; convert it.")
    if isinstance(x, Tensor | SparseRows):
        return x
    if not x.flags.c_contiguous:
        return x if isinstance(x, np.memmap) else torch.from_numpy(np.ascontiguousarray(x))
    if x.flags.writeable:
        return torch.from_numpy(x)
    with (
        warnings.catch_warnings()
    ):  # what is read-only, such as a memory map, is shared: nothing here writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x)


def labels(y: Any) -> Tensor:
    """Y as 64-bit integers on the CPU."""
    wanted = "y must be a one-dimensional array of class numbers."
    if not isinstance(y, Tensor) and isinstance(next(iter(np.ravel(np.asarray(y))), None), str):
        raise UserError(f"y must be class numbers, and holds names; {numbering(y)}.")
    found = y.detach().cpu() if isinstance(y, Tensor) else torch.from_numpy(np.array(_array(y, wanted)))
    if found.dim() != 1 or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise UserError(wanted)
    return found.to(torch.int64)


def numbering(y: Any) -> str:
    """What to write where labels are names, or numbers with gaps.

    >>> numbering(["dog", "cat", "dog"])
    "number them by the sorted list of all classes that will ever come: learn(x, numpy.searchsorted(['cat', 'dog'], y))"
    """
    names = sorted({*np.asarray(y).tolist()}, key=str)
    classes = names if len(names) <= 20 else "CLASSES"
    return f"number them by the sorted list of all classes that will ever come: learn(x, numpy.searchsorted({classes}, y))"


def wrong_shape(model: Any, x: Any) -> str | None:
    """What to say of inputs that a model failed on, if they have not the shape that it was built for."""
    wanted, shape = getattr(model, "description", {}).get("inputs"), getattr(x, "shape", None)
    if wanted is None or shape is None or tuple(wanted) == (given_shape := tuple(shape[1:])):
        return None
    return f"The model takes inputs of shape {tuple(wanted)}, not {given_shape}; give what it was built for, one row per example."


def check_finite(x: Any) -> None:
    """Refuse NaN and infinite values."""
    for block, _ in blocks_of(x, x):
        values = block if isinstance(block, Tensor) else torch.from_numpy(np.array(block))
        if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
            continue  # a sum with a NaN or an infinite part is never finite, and a sum is quicker
        if not bool(torch.isfinite(values).all()):
            raise UserError("x contains NaN or infinite values; clean the data first.")


def _rows(x: Any) -> Any:
    """X as it is, but for what has no rows in slices."""
    if isinstance(x, Mapping | tuple):
        raise UserError(
            "x holds several arrays, and an example must be one: put them side by side with cop2l.models.pack, and wrap the"
            " model in cop2l.models.Unpacked."
        )
    if isinstance(x, Tensor):
        return (x if x.layout == torch.strided else x.to_dense()).detach()
    return SparseRows(x) if hasattr(x, "tocsr") else x


def in_words(error: BaseException) -> str:
    """Why a model refused its inputs, in a line; torch's sizes of matrices are those of whole blocks, and of padded rows.

    >>> in_words(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2048x30 and 16x512)"))
    'a layer takes another number of values'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return "a layer takes another number of values" if "shapes cannot be multiplied" in line else line


def reader(x: Any) -> Any:
    """What reads x block by block; None if it is no collection of a library but an array or a list."""
    if isinstance(x, DataLoader | Dataset):
        return _from_torch
    if hasattr(x, "column_names") and hasattr(x, "with_format"):
        return _from_hugging_face
    return _from_frame if hasattr(type(x), "columns") else None


def _read(x: Any, y: Any) -> Iterator[Block]:
    named = isinstance(y, str)
    found: Iterator[Block] = reader(x)(x, y if named else LABEL)
    return found


def _from_torch(x: Any, label: str) -> Iterator[Block]:
    """A map-style Dataset in its own order, whatever order the loader would take; with the loader's workers."""
    loader = x if isinstance(x, DataLoader) else DataLoader(x, batch_size=ROWS)
    if isinstance(loader.dataset, IterableDataset):
        raise UserError("An IterableDataset has no fixed order; give a map-style Dataset, or arrays.")
    sampler = loader.sampler
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and len(sampler) == len(sampler.data_source)
    )
    if loader.batch_size is None or not whole:
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
        for batch in ordered:
            pair = batch if isinstance(batch, tuple | list) else (batch, None)
            if isinstance(batch, Mapping):
                pair = {name: batch[name] for name in batch if name != label}, batch.get(label)
            if len(pair) != 2:
                raise UserError(
                    f"The data set gives {len(pair)} values for each example; it must give (x, y)."
                )
            if isinstance(pair[1], Mapping | tuple | list):
                raise UserError("The label of each example must be one class number, not several values.")
            yield _rows(tuple(pair[0]) if isinstance(pair[0], list) else pair[0]), pair[1]
    except (TypeError, RuntimeError) as error:  # of collate_fn
        why = (str(error).splitlines() or [""])[0][:200]
        raise UserError(
            f"The examples do not fit into one array (give tensors of one shape): {why}"
        ) from None


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
    """The label column, and the others side by side, in their order, or the only one that holds arrays."""
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
    """All blocks as one."""
    xs, ys = zip(*parts, strict=True)
    try:
        x = torch.cat(xs) if isinstance(xs[0], Tensor) else np.concatenate(xs)
        return x, None if ys[0] is None else np.concatenate([np.asarray(y) for y in ys])
    except (RuntimeError, ValueError, KeyError):
        raise UserError("The examples have different shapes; bring them into one shape first.") from None


def _without_labels(name: Any) -> UserError:
    if name is not None:
        return UserError(f"x has no column {name!r}; give the labels as an array.")
    return UserError(
        "There are no labels: give y, or x with a column named 'label', or a data set of (x, y) pairs."
    )


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
