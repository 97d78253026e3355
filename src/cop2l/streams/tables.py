"""The reader of tables: Parquet and CSV files, and data frames."""

import gzip
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, advise, missing_extra
from cop2l.streams.encoding import COLUMNS, Columns, Rows, hash_texts
from cop2l.streams.pictures import Pictures

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
MISSING = "Column {!r} of {} has missing values; fill them, or remove their rows."
DATES = "Column {!r} of {} holds dates; leave it out, or make tasks of it with domain=."
HEAD_BYTES = 1 << 16
NUMBER = r"[-+]?(?=.*\d)(\d{1,3}([,.'’\s]\d{3})+|\d*)([.,]\d*)?([eE][-+]?\d+)?\s*%?"
PLAIN_NUMBER = r"[-+]?\d*\.?\d*([eE][-+]?\d+)?"
YEAR_FIRST = r"(1[5-9]|20)\d\d([-./ ]?[QqWw]?\d{1,2}){,2}([T ][\d:.]+\S*)?"
DATE = rf"{YEAR_FIRST}|\d{{1,2}}[-./]\d{{1,2}}[-./]\d{{2,4}}([T ][\d:.]+\S*)?"
FEW_ROWS = 20
MOST_DISTINCT = 0.9
"""A larger share of distinct texts in a column is that of an ID, or of free text."""
INDEX_NAME = r"|index|(.*[ _])?id|row|row_number|unnamed: 0|__index_level_0__"
FORMS = {
    "empty": "null",
    "numbers": r"u?int\d+|halffloat|float|double|bool|decimal.*",
    "text": r"(large_)?string(_view)?|dictionary.*",
    "pictures": r"(large_)?binary|struct<.*\bbytes: .*",  # as the datasets library writes them
    "arrays": r"(large_|fixed_size_)?list.*|extension.*",
    "dates": "(date|time).*",
}
"""The forms of a column's values, by the name of their type."""
SINGLE_INPUTS = ("arrays", "pictures")
"""The forms of a column that is the only input."""


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


def from_frame(x: Any) -> Any:
    """A data frame of pandas (without its index) or of polars, or a pyarrow table, as a pyarrow table; None for other inputs."""
    if hasattr(x, "column_names"):
        return x
    if not (hasattr(x, "columns") and hasattr(x, "to_numpy")):
        return None
    return x.to_arrow() if hasattr(x, "to_arrow") else _pyarrow().Table.from_pandas(x, preserve_index=False)


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading tables and data frames") from None
    return pa


def _csv(file: Path, columns: Columns | None) -> Any:
    """The table in a CSV or TSV file, whose first bytes tell encoding, delimiter and decimal point.

    Its first rows decide about the types, and numbers become float32 at once; if a later value does not fit, all values decide.
    """
    pa = _pyarrow()
    from pyarrow import csv

    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    delimiter, point = dialect(head.decode(encoding, errors="replace"))

    form = csv.ReadOptions(encoding=encoding), csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def types(of: Mapping[str, Any]) -> Any:
        return csv.ConvertOptions(column_types=of, decimal_point=point, strings_can_be_null=True)

    texts = dict.fromkeys(columns.names if columns else (), pa.string())
    try:
        try:
            with csv.open_csv(str(file), *form, types(texts)) as reader:
                numbers = [f.name for f in reader.schema if columns and str(f.type) in ("int64", "double")]
            with csv.open_csv(
                str(file), *form, types(dict.fromkeys(numbers, pa.float32()) | texts)
            ) as reader:
                table = reader.read_all()
        except pa.ArrowInvalid:
            table = csv.read_csv(str(file), *form, types(texts))
        if any(map(pa.types.is_binary, table.schema.types)):
            raise pa.ArrowInvalid("invalid UTF8 data")
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            raise UserError(
                f"{file} is not UTF-8 text, but perhaps Windows-1252; write it again as UTF-8."
            ) from error
        raise
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
    y, domain, group, order = (
        None if name is None else _names(table[name], name, file)
        for name in (columns.label, columns.domain, columns.group, columns.task_order if labels else None)
    )
    forms = {name: value_form(table[name].type) for name in inputs}
    if len(inputs) == 1 and forms[inputs[0]] in SINGLE_INPUTS and inputs[0] not in columns.text:
        return Part(_single_input(table[inputs[0]], inputs[0], file), y, domain, group, order)
    if any(form in SINGLE_INPUTS for form in forms.values()):
        raise UserError(
            f"{file} has a column of arrays or pictures beside other inputs; choose this column, or several of numbers and"
            " text, with columns=."
        )
    categories = {*columns.categories, *(name for name in inputs if forms[name] == "text")}
    kinds = columns.kinds or {
        name: "text" if name in columns.text else "category" if name in categories else "number"
        for name in inputs
    }
    values, refused = dict[str, Any](), dict[str, UserError]()
    for name in inputs:
        try:
            values[name] = _column(table[name], name, file, kinds[name], columns)
        except UserError as error:
            refused[name] = error
    if refused:
        first, drop = next(iter(refused.values())), shlex.quote(f"drop={','.join(refused)}")
        raise first if columns.kinds else UserError(f"{first} To leave out such columns, add {drop}.")
    if labels and not columns.kinds:
        _warn_of_row_numbers(file, {name: v for name, v in values.items() if kinds[name] == "number"})
    return Part(Rows(values, columns._replace(kinds=kinds)), y, domain, group, order)


def _input_names(names: Sequence[str], file: Path | str, columns: Columns) -> list[str]:
    """The input columns in order; those of a run must all be present, and without others unless some were chosen."""
    beside = {columns.label, columns.domain, columns.group, columns.task_order, *columns.drop}
    candidates = [name for name in names if name not in beside]
    if learned := list(columns.kinds):
        missing = [name for name in learned if name not in names]
        unexpected = [name for name in candidates if name not in learned]
        refuse_columns(file, missing, unexpected if columns.columns is None else [], learned)
        return learned
    for option in COLUMNS:
        chosen = getattr(columns, option) or ()
        if absent := [n for n in ([chosen] if isinstance(chosen, str) else chosen) if n not in names]:
            raise UserError(
                f"{file} has no column {absent[0]!r}; choose with {option}= among: {', '.join(names)}."
            )
    inputs = list(
        dict.fromkeys([*(candidates if columns.columns is None else columns.columns), *columns.text])
    )
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


def _array(column: Any) -> Any:
    """A column as one plain array."""
    pa = _pyarrow()
    array = column.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _distinct(column: Any) -> tuple[list[Any], np.ndarray]:
    """The distinct values of a column, and the index of each row's value among them; gaps come last."""
    array = _array(column)
    encoded = (array.cast("string") if value_form(array.type) == "empty" else array).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    return values, encoded.indices.fill_null(len(values)).to_numpy()


def _names(column: Any, name: str, file: Path | str) -> Any:
    """A column of labels, domains, groups or moments."""
    values, places = _distinct(column)
    if column.null_count or "" in values:
        raise UserError(MISSING.format(name, file))
    return np.array(values)[places]


def _column(column: Any, name: str, file: Path | str, kind: str, columns: Columns) -> Any:
    """One input as it is stored: numbers, texts of categories, or hashed text."""
    if kind == "number":
        return _numbers(column, name, file)
    form = value_form(column.type)
    if form in ("other", *SINGLE_INPUTS) or (kind == "text" and form in ("numbers", "dates")):
        raise UserError(f"Column {name!r} of {file} is not text; leave it out of text=.")
    distinct, places = _distinct(column)
    texts = [*map(str, distinct), ""]
    if kind == "text":
        return hash_texts(np.array(texts)[places], columns.text_size)
    if name not in {*columns.kinds, *columns.categories}:
        _refuse_no_category(set(texts) - {""}, len(column), name, file)
    return np.array(texts)[places]


def _numbers(column: Any, name: str, file: Path | str) -> Any:
    """A column of numbers in float32, which stays in chunks."""
    if (form := value_form(column.type)) == "dates":
        raise UserError(DATES.format(name, file))
    if form not in ("numbers", "empty"):
        cells = [(row, str(cell)) for row, cell in enumerate(column.to_pylist(), 1) if cell is not None]
        row, value = next((cell for cell in cells if not re.fullmatch(NUMBER, cell[1].strip())), cells[0])
        raise UserError(
            f"Column {name!r} of {file} holds numbers, but {value!r} in row {row}; correct the cell, or leave it empty if the"
            " value is missing."
        )
    if str(column.type) != "float":
        column = column.cast("float64", safe=False).cast("float32", safe=False)
    if _pyarrow().compute.any(_pyarrow().compute.is_inf(column)).as_py():
        raise UserError(f"Column {name!r} of {file} has a value that is not finite; replace or remove it.")
    return column


def _refuse_no_category(texts: set[str], rows: int, name: str, file: Path | str) -> None:
    """Refuse a column of texts that are numbers or dates in another form, or another one in nearly every row."""
    title = f"Column {name!r} of {file}"
    non_numbers = {text for text in texts if not re.fullmatch(NUMBER, text.strip())}
    if len(texts) > 2 and 0 < len(non_numbers) < len(texts) / 2:
        raise UserError(
            f"{title} holds numbers and the text {min(non_numbers)!r}; leave the cell empty where a value is missing."
        )
    if not non_numbers and (marked := [t for t in texts if not re.fullmatch(PLAIN_NUMBER, t.strip())]):
        raise UserError(
            f"{title} holds numbers such as {min(marked)!r}; write them as 1234.5, or take them as names with categories={name}."
        )
    if texts and all(re.fullmatch(DATE, t.strip()) for t in texts):
        raise UserError(DATES.format(name, file))
    if rows >= FEW_ROWS and len(texts) > MOST_DISTINCT * rows:
        raise UserError(
            f"{title} has another text in nearly every row, as an ID; leave it out, or name it in text= if it is text."
        )


def _warn_of_row_numbers(file: Path | str, numbers: Mapping[str, Any]) -> None:
    """Warn of a column that counts the rows: in a file sorted by class it tells the class."""
    for name, column in numbers.items():
        values = np.asarray(column)
        counts = len(values) > 2 and bool((np.diff(values) == 1).all())
        if counts or (re.fullmatch(INDEX_NAME, name.lower()) and len(np.unique(values)) == len(values)):
            advise(
                f"Column {name!r} of {file} looks like a row number or an ID, which can tell the class; leave it out with drop=."
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
    while value_form(array.type) == "arrays":
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
    """The form of a column's values, by their type: numbers, arrays, pictures, text, dates, empty or other."""
    return next((form for form, pattern in FORMS.items() if re.fullmatch(pattern, str(kind))), "other")
