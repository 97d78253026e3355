"""The reader of tables: Parquet and CSV files, and data frames."""

import gzip
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import Advice, UserError, missing_extra
from cop2l.streams.encoding import TEXT_SIZE, Declared, Rows, hash_texts
from cop2l.streams.pictures import Pictures

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
MISSING = "Column {!r} of {} has missing values; fill them, or remove their rows."
HEAD_BYTES = 1 << 16
NUMBER = r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*"
INDEX_NAMES = ("", "index", "id", "row", "row_number", "unnamed: 0", "__index_level_0__")
SINGLE_INPUTS = ("arrays", "pictures")
"""The forms of a column that is the only input."""


class Columns(NamedTuple):
    """The names of a table's columns, by their use."""

    label: str | None = "label"
    inputs: Sequence[str] | None = None
    """None: all columns without another use."""
    text: Sequence[str] = ()
    text_size: int = TEXT_SIZE
    domain: str | None = None
    group: str | None = None
    order: str | None = None
    """Numbers or dates that order the domains: the domain with the least comes first."""
    declared: Declared = Declared()
    kinds: Mapping[str, str] = {}
    """The inputs of a run, each with its kind: number, category or text."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that hold names, not numbers: 01 and 1 differ."""
        texts = [name for name, kind in self.kinds.items() if kind in ("category", "text")]
        beside = [name for name in (self.label, self.domain, self.group) if name is not None]
        return (*beside, *self.text, *self.declared.categories, *texts)

    def as_dict(self) -> dict[str, Any]:
        """The choices that a run stores."""
        choices = {name: getattr(self, name) for name in ("label", "domain", "group", "order", "text_size")}
        return {**choices, "chosen": self.inputs is not None}


class Part(NamedTuple):
    """The training part or the test part: inputs, labels, and the optional domain, group and order of each example."""

    x: Any
    y: Any
    domain: Any = None
    groups: Any = None
    order: Any = None


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.name.lower().endswith(SUFFIXES)


def read_table(files: Sequence[Path], columns: Columns | None = None) -> Any:
    """The rows of all files as one pyarrow table."""
    pa = _pyarrow()
    from pyarrow import parquet

    try:
        table = pa.concat_tables(
            parquet.read_table(str(file)) if file.suffix.lower() == ".parquet" else _csv(file, columns)
            for file in files
        )
    except (pa.ArrowException, OSError, EOFError) as error:
        kind = "".join(files[0].suffixes[-2:]) if files[0].suffix == ".gz" else files[0].suffix
        why = (str(error).splitlines() or [""])[0].removeprefix("CSV parse error: ")[:100]
        raise UserError(f"{files[0]} is not a readable {kind} file ({why}); write it again.") from error
    if repeated := [name for name in table.column_names if table.column_names.count(name) > 1]:
        raise UserError(f"{files[0]} has two columns named {repeated[0]!r}; rename one of them.")
    return table


def is_frame(x: Any) -> bool:
    """Whether x is a data frame of pandas or polars, or a pyarrow table."""
    return hasattr(x, "column_names") or (hasattr(x, "columns") and hasattr(x, "to_numpy"))


def from_frame(x: Any) -> Any:
    """A data frame as a pyarrow table, without the index of pandas."""
    pa = _pyarrow()
    if hasattr(x, "column_names"):
        return x
    return x.to_arrow() if hasattr(x, "to_arrow") else pa.Table.from_pandas(x, preserve_index=False)


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading tables and data frames") from None
    return pa


def _csv(file: Path, columns: Columns | None) -> Any:
    """The table in a CSV or TSV file, whose first bytes tell encoding, delimiter and decimal point."""
    pa = _pyarrow()
    from pyarrow import csv

    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    delimiter, point = dialect(head.decode(encoding, errors="replace"))
    not_utf8 = UserError(f"{file} is not UTF-8 text, but perhaps Windows-1252; write it again as UTF-8.")
    try:
        table = csv.read_csv(
            str(file),
            read_options=csv.ReadOptions(encoding=encoding),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(columns.names if columns else (), pa.string()),
                decimal_point=point,
                strings_can_be_null=True,
            ),
        )
        types = dict(zip(table.column_names, table.schema.types, strict=True))
    except UnicodeDecodeError as error:
        raise not_utf8 from error
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise not_utf8 from error
        raise
    if any(map(pa.types.is_binary, types.values())):  # text that is not UTF-8
        raise not_utf8
    return table


def dialect(text: str) -> tuple[str, str]:
    r"""The delimiter and the decimal point of a CSV file, from its beginning.

    >>> dialect("a;b\n1,5;2\n"), dialect("a\tb\n1.5\t2\n"), dialect("a,b\n1,5\n")
    ((';', ','), ('\t', '.'), (',', '.'))
    """
    header, *lines = re.sub(r'"[^"]*"', "", text).splitlines() or [""]
    delimiter = max(",;\t", key=header.count)
    fields = [field for line in lines[:-1] or lines for field in line.split(delimiter)]
    comma, point = (
        any(re.fullmatch(rf"\s*-?\d+{sign}\d+\s*", field) for field in fields) for sign in (",", r"\.")
    )
    return delimiter, "," if comma and not point else "."


def from_table(table: Any, file: Path | str, columns: Columns, *, labels: bool = True) -> Part:
    """The part in a table; its inputs are all columns without another use, or those named in `columns`.

    Without `labels`, the columns of labels, domains and groups may be absent.
    """
    names = table.column_names
    if not labels:
        present = [name if name in names else None for name in (columns.label, columns.domain, columns.group)]
        columns = columns._replace(label=present[0], domain=present[1], group=present[2])
    inputs = _input_names(names, file, columns)
    y, domain, group = (
        None if name is None else _names(table[name], name, file)
        for name in (columns.label, columns.domain, columns.group)
    )
    order = None if columns.order is None or not labels else _order(table[columns.order], columns.order, file)
    forms = {name: value_form(table[name].type) for name in inputs}
    if len(inputs) == 1 and forms[inputs[0]] in SINGLE_INPUTS and inputs[0] not in columns.text:
        return Part(_single_input(table[inputs[0]], inputs[0], file), y, domain, group, order)
    if any(form in SINGLE_INPUTS for form in forms.values()):
        raise UserError(
            f"{file} has a column of arrays or pictures beside other inputs; choose this column, or several of numbers and"
            " text, with columns=."
        )
    kinds = {name: _kind(name, forms[name], columns) for name in inputs}
    values = {name: _column(table[name], name, file, kinds[name], columns.text_size) for name in inputs}
    if labels and not columns.kinds:
        _warn_of_row_numbers(file, {name: v for name, v in values.items() if kinds[name] == "number"})
    return Part(Rows(values, kinds, columns.declared), y, domain, group, order)


def _input_names(names: Sequence[str], file: Path | str, columns: Columns) -> list[str]:
    """The input columns in order; those of a run must all be present, and without others unless some were chosen."""
    beside = {columns.label, columns.domain, columns.group, columns.order}
    if columns.kinds:
        missing = [name for name in columns.kinds if name not in names]
        unexpected = [name for name in names if name not in columns.kinds and name not in beside]
        refuse_columns(file, missing, unexpected if columns.inputs is None else [], list(columns.kinds))
        return list(columns.kinds)
    options = {
        "label": [columns.label],
        "columns": columns.inputs or [],
        "text": columns.text,
        "domain": [columns.domain],
        "group": [columns.group],
        "task_order": [columns.order],
    }
    for option, chosen in options.items():
        if absent := [name for name in chosen if name is not None and name not in names]:
            raise UserError(
                f"{file} has no column {absent[0]!r}; choose with {option}= among: {', '.join(names)}."
            )
    inputs = [name for name in names if name not in beside] if columns.inputs is None else columns.inputs
    inputs = list(dict.fromkeys([*inputs, *columns.text]))
    if not inputs or columns.label in inputs:
        problem = f"takes its label {columns.label!r} for an input" if inputs else "has no column of inputs"
        raise UserError(f"{file} {problem}; choose others with columns= and text=.")
    return inputs


def refuse_columns(
    title: object, missing: Sequence[str], unexpected: Sequence[str], learned: Sequence[str]
) -> None:
    """Refuse a table that lacks columns, or has others than those that were learned."""
    differences = (("lacks", missing), ("has also", unexpected))
    parts = [f"{verdict} {', '.join(map(repr, names))}" for verdict, names in differences if names]
    if parts:
        raise UserError(
            f"{title} {' and '.join(parts)}; give the columns that were learned: {', '.join(learned)}."
        )


def _kind(name: str, form: str, columns: Columns) -> str:
    """The kind of an input: that of the run, else the declared one, else that of its values."""
    if name in columns.kinds:
        return columns.kinds[name]
    if name in columns.text:
        return "text"
    return "category" if name in columns.declared.categories or form == "text" else "number"


def _array(column: Any) -> Any:
    """A column as one plain array."""
    pa = _pyarrow()
    array = column.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _names(column: Any, name: str, file: Path | str) -> np.ndarray:
    """A column of labels, domains or groups."""
    names = _array(column).to_pylist()
    if None in names or "" in names:
        raise UserError(MISSING.format(name, file))
    return np.array(names)


def _order(column: Any, name: str, file: Path | str) -> np.ndarray:
    types = _pyarrow().types
    if not (types.is_temporal(column.type) or value_form(column.type) == "numbers") or column.null_count:
        raise UserError(
            f"Column {name!r} of {file} must hold a number or a date such as 2024-01-31 in each row; correct it, or list the"
            " domains in task_order=."
        )
    values: np.ndarray = _array(column).to_numpy(zero_copy_only=False)
    return values


def _column(column: Any, name: str, file: Path | str, kind: str, text_size: int) -> np.ndarray:
    """One input as it is stored: numbers, texts of categories, or hashed text."""
    array, form = _array(column), value_form(column.type)
    if kind == "number":
        return _numbers(array, name, file, form)
    if form not in ("text", "numbers", "empty") or (kind == "text" and form == "numbers"):
        raise UserError(f"Column {name!r} of {file} is not text; leave it out of text=.")
    texts = ["" if value is None else str(value) for value in array.to_pylist()]
    if kind == "text":
        return hash_texts(texts, text_size)
    distinct = set(texts) - {""}
    non_numbers = {text for text in distinct if not re.fullmatch(NUMBER, text)}
    if form == "text" and len(distinct) > 2 and 0 < len(non_numbers) < len(distinct) / 2:
        raise UserError(
            f"Column {name!r} of {file} holds numbers and the text {min(non_numbers)!r}; leave the cell empty where a value is"
            " missing."
        )
    return np.array(texts)


def _numbers(array: Any, name: str, file: Path | str, form: str) -> np.ndarray:
    if form not in ("numbers", "empty"):
        cells = [(row, str(cell)) for row, cell in enumerate(array.to_pylist(), 1) if cell is not None]
        row, value = next((cell for cell in cells if not re.fullmatch(NUMBER, cell[1])), cells[0])
        raise UserError(
            f"Column {name!r} of {file} holds numbers, but {value!r} in row {row}; correct the cell, or leave it empty if the"
            " value is missing."
        )
    with np.errstate(over="ignore"):
        numbers: np.ndarray = array.cast("float64").to_numpy(zero_copy_only=False).astype(np.float32)
    if np.isinf(numbers).any():
        raise UserError(f"Column {name!r} of {file} has a value that is not finite; replace or remove it.")
    return numbers


def _warn_of_row_numbers(file: Path | str, numbers: Mapping[str, np.ndarray]) -> None:
    """Warn of a column that counts the rows: in a file sorted by class it tells the class."""
    for name, values in numbers.items():
        counts = len(values) > 2 and bool((np.diff(values) == 1).all())
        if counts or (name.lower() in INDEX_NAMES and len(np.unique(values)) == len(values)):
            warnings.warn(
                f"Column {name!r} of {file} looks like a row number or an index, which can tell the class; choose the inputs"
                " without it with columns=.",
                Advice,
                stacklevel=2,
            )


def _single_input(column: Any, name: str, file: Path | str) -> Any:
    """A column of arrays of one shape, or of pictures."""
    pa = _pyarrow()
    array = _array(column)
    if array.null_count:
        raise UserError(MISSING.format(name, file))
    if value_form(array.type) == "pictures":
        folder = Path(file) if Path(file).is_dir() else Path(file).parent
        cells = array.to_pylist()
        return Pictures(
            [c if isinstance(c, bytes) else c.get("bytes") or folder / str(c["path"]) for c in cells]
        )
    shape = [len(array)]
    while _is_list(array.type):
        inner, sizes = array.flatten(), pa.compute.list_value_length(array)
        if len(array) == 0 or pa.compute.count_distinct(sizes).as_py() > 1:
            raise UserError(
                f"The rows of column {name!r} of {file} differ in length; give all of them the same shape."
            )
        shape.append(len(inner) // len(array))
        array = inner
    if value_form(array.type) != "numbers" or array.null_count:
        raise UserError(
            f"Column {name!r} of {file} must hold arrays of numbers without gaps; correct its values."
        )
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def value_form(kind: Any) -> str:
    """The form of a column's values, by their type: numbers, arrays, pictures, text, empty or other."""
    types = _pyarrow().types
    forms = {
        "empty": (types.is_null,),
        "numbers": (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
        "text": (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary),
        "pictures": (types.is_binary, types.is_large_binary, _is_encoded),
        "arrays": (_is_list, lambda kind: hasattr(kind, "storage_type")),
    }
    return next((form for form, checks in forms.items() if any(check(kind) for check in checks)), "other")


def _is_encoded(kind: Any) -> bool:
    """Whether a type is that of pictures in the datasets library."""
    return _pyarrow().types.is_struct(kind) and "bytes" in {field.name for field in kind}


def _is_list(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
