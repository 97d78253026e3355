"""Tables: the one reader of Parquet, CSV and Arrow files, for everything that takes a user's file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams.pictures import Pictures
from cop2l.streams.text import SIZE, hashed

SUFFIXES = (".parquet", ".csv")
MISSING = "Column {!r} of {} has missing values; fill or remove them."


class Columns(NamedTuple):
    """The columns of a table that are named: labels, inputs (None: all others), texts among them, domains, groups."""

    label: str | None = "label"
    inputs: Sequence[str] | None = None
    text: Sequence[str] = ()
    text_size: int = SIZE
    domain: str | None = None
    group: str | None = None

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are no inputs; their values are names, whatever they look like."""
        return tuple(name for name in (self.label, self.domain, self.group) if name is not None)


class Part(NamedTuple):
    """Inputs and labels, and the domain and the group of each example where there are any."""

    x: Any
    y: Any
    domain: Any = None
    groups: Any = None


def read_table(files: Sequence[Path], columns: Columns | None = None) -> Any:
    """The rows of some files, one after the other, as a pyarrow table; labels 01 and 1 of a CSV differ."""
    pa = _pyarrow()
    from pyarrow import csv, parquet

    kind = files[0].suffix
    names = dict.fromkeys(columns.beside if columns else (), pa.string())
    convert = csv.ConvertOptions(column_types=names)
    try:
        found = [
            csv.read_csv(str(file), convert_options=convert)
            if kind == ".csv"
            else _arrow(file)
            if kind == ".arrow"
            else parquet.read_table(str(file))
            for file in files
        ]
        if kind == ".csv" and any(pa.types.is_binary(field.type) for field in found[0].schema):
            raise UserError(f"{files[0]} is not readable as CSV; write it again as UTF-8 text.")
        table = pa.concat_tables(found)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{files[0]} is not a readable {kind} file; write it again.") from error
    if twice := [name for name in table.column_names if table.column_names.count(name) > 1]:
        raise UserError(f"{files[0]} has two columns named {twice[0]!r}; rename one.")
    return table


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading Parquet, CSV and Arrow files") from None
    return pa


def _arrow(file: Path) -> Any:
    """An Arrow file in either of its two formats."""
    pa = _pyarrow()
    with pa.memory_map(str(file)) as source:
        try:
            return pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_file(source).read_all()


def from_table(table: Any, file: Path, columns: Columns, *, labels: bool = True) -> Part:
    """Inputs from all columns but the label, the domain and the group, or from those named.

    Unless `labels` are needed, columns of labels and groups may be absent.
    """
    known = table.column_names
    if not labels:
        columns = columns._replace(
            label=columns.label if columns.label in known else None,
            group=columns.group if columns.group in known else None,
        )
    named = {
        "label": [columns.label],
        "columns": columns.inputs or [],
        "text": columns.text,
        "domain": [columns.domain],
        "group": [columns.group],
    }
    for option, names in named.items():
        for name in names:
            if name is not None and name not in known:
                raise UserError(
                    f"{file} has no column {name!r}; choose with {option}= among: {', '.join(known)}."
                )
    inputs = columns.inputs
    if inputs is None:
        inputs = [name for name in known if name not in columns.beside]
    inputs = list(dict.fromkeys([*inputs, *columns.text]))
    if not inputs or columns.label in inputs:
        wrong = f"takes its label {columns.label!r} for an input" if inputs else "has no column of inputs"
        raise UserError(f"{file} {wrong}; choose others with columns= and text=.")
    values = []
    for name in inputs:
        array = _values(table[name], name, file)
        is_text = name in columns.text
        values.append(
            _hashed(array, name, file, columns.text_size) if is_text else _inputs(array, name, file)
        )
    y, domain, group = (
        None if name is None else _names(table[name], name, file)
        for name in (columns.label, columns.domain, columns.group)
    )
    whole = [v for name, v in zip(inputs, values, strict=True) if name not in columns.text and _is_whole(v)]
    if whole and len(values) > 1:
        raise UserError(
            f"Choose one column of arrays or pictures in {file}, or several of numbers and text, with columns=."
        )
    if whole:
        return Part(whole[0], y, domain, group)
    parts = [v if v.ndim > 1 else v[:, None] for v in values]
    return Part(np.concatenate([v.astype(np.float32) for v in parts], axis=1), y, domain, group)


def _is_whole(values: Any) -> bool:
    """Whether a column is all of an example: an array or a picture."""
    return isinstance(values, Pictures) or values.ndim > 1


def _values(column: Any, name: str, file: Path) -> Any:
    """A column as one array without gaps."""
    pa = _pyarrow()
    array = column.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if array.null_count:
        raise UserError(MISSING.format(name, file))
    return array


def _names(column: Any, name: str, file: Path) -> np.ndarray:
    """A column of names: texts as they are, whole numbers in digits."""
    found = _values(column, name, file).to_pylist()
    if "" in found:
        raise UserError(MISSING.format(name, file))
    return np.array(found)


def _hashed(array: Any, name: str, file: Path, size: int) -> np.ndarray:
    texts = array.to_pylist()
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"Column {name!r} of {file} is not text; leave it out of text=.")
    return hashed(texts, size)


def _inputs(array: Any, name: str, file: Path) -> Any:
    """One column as numbers, as arrays of one shape, or as pictures."""
    pa = _pyarrow()
    if form(array.type) == "pictures":
        return Pictures([_encoded(cell, file) for cell in array.to_pylist()])
    shape = [len(array)]
    while _is_list(array.type):
        inner, sizes = array.flatten(), pa.compute.list_value_length(array)
        if len(array) == 0 or pa.compute.count_distinct(sizes).as_py() > 1:
            raise UserError(
                f"The rows of column {name!r} of {file} differ in length; give all the same shape."
            )
        shape.append(len(inner) // len(array))
        array = inner
    if form(array.type) != "numbers":
        raise UserError(
            f"Column {name!r} of {file} is not numeric; choose the inputs with columns=, or name it in text= if it is text."
        )
    if array.null_count:
        raise UserError(MISSING.format(name, file))
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _encoded(cell: Any, file: Path) -> Path | bytes:
    """A picture's bytes, or the file it points to."""
    if isinstance(cell, bytes) or cell.get("bytes"):
        return cell if isinstance(cell, bytes) else bytes(cell["bytes"])
    return (file if file.is_dir() else file.parent) / str(cell["path"])


def form(kind: Any) -> str:
    """What the values of a column are, by their type: numbers, arrays, pictures, text, or something else."""
    types = _pyarrow().types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "numbers"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return "text"
    encoded = types.is_struct(kind) and "bytes" in {field.name for field in kind}
    if encoded or types.is_binary(kind) or types.is_large_binary(kind):
        return "pictures"
    return "arrays" if _is_list(kind) or hasattr(kind, "storage_type") else "other"


def _is_list(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
