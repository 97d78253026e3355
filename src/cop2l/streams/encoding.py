"""The encoding of a table: gaps, categories and text become numbers.

The encoding depends only on declarations and on rows of the first task that do not certify. A certified
row never changes the encoding of other rows or the number of inputs, so every bound holds unchanged (docs/data.md).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams.task import fingerprint

MOST_VALUES = 100
"""The largest number of categories that these rows may give a column."""
TEXT_SIZE = 1024
"""The default number of inputs per column of text."""


class Declared(NamedTuple):
    """The gaps and categories of a table that the user declares."""

    missing: tuple[str, ...] = ()
    """Columns that get an indicator of their gaps."""
    categories: Mapping[str, tuple[str, ...]] = {}
    """The values of each column; empty: those of the preparing rows."""

    @classmethod
    def of(cls, missing: Any, categories: Any) -> "Declared":
        """From names of columns with gaps, and from COLUMN or COLUMN=VALUE|VALUE or a mapping from columns to values.

        >>> Declared.of("age", ["zip", "city=Bern|Genf"])
        Declared(missing=('age',), categories={'zip': (), 'city': ('Bern', 'Genf')})
        """
        if not isinstance(categories, Mapping):
            pairs = [str(text).partition("=") for text in name_list(categories)]
            categories = {name: tuple(values.split("|")) if values else () for name, _, values in pairs}
        values = {str(name): tuple(map(str, values or ())) for name, values in categories.items()}
        return cls(tuple(name_list(missing)), values)


def name_list(names: Any) -> list[str]:
    """One name, several or None, as a list of texts; a number is a name too."""
    if names is None:
        return []
    return [str(name) for name in (names if isinstance(names, list | tuple) else [names])]


class Rows:
    """Stored rows of a table, one array per column.

    A gap is NaN among numbers and an empty text among categories. Text is hashed already.
    """

    ndim = 2

    def __init__(
        self, columns: Mapping[str, np.ndarray], kinds: Mapping[str, str], declared: Declared
    ) -> None:
        self.columns, self.kinds, self.declared = dict(columns), dict(kinds), declared

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: Any) -> "Rows":
        return Rows({name: values[index] for name, values in self.columns.items()}, self.kinds, self.declared)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return Encoder.fit("The table", [self], None)(self)

    def gaps(self, name: str) -> np.ndarray:
        """Whether each row has no value in a column."""
        values, kind = self.columns[name], self.kinds[name]
        if kind == "number":
            return np.asarray(np.isnan(values))
        return np.asarray(values == "" if kind == "category" else ~values.any(axis=1))

    def fingerprint(self, y: Any) -> str:
        """The fingerprint of the inputs if they need no encoding, else of the stored columns."""
        if not any(
            kind == "category" or (kind == "number" and self.gaps(name).any())
            for name, kind in self.kinds.items()
        ):
            return fingerprint(np.asarray(self), y)
        digest = hashlib.sha256(b"cop2l table 1\n")
        for name, values in self.columns.items():
            content = "\n".join(values).encode() if self.kinds[name] == "category" else values.tobytes()
            digest.update(f"{name!r} {len(content)}\n".encode() + content)
        return hashlib.sha256(digest.digest() + np.asarray(y, np.int64).tobytes()).hexdigest()


class Encoder:
    """From stored rows to inputs: column by column numbers, one-hot categories or text, then the indicators of gaps.

    >>> rows = Rows({"age": np.float32([1, np.nan]), "city": np.array(["Bern", "Rom"])},
    ...             {"age": "number", "city": "category"}, Declared(("age",), {"city": ("Bern", "Genf")}))
    >>> Encoder.fit("people", [rows], None)(rows)
    array([[1., 1., 0., 0.],
           [0., 0., 0., 1.]], dtype=float32)
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self.columns = [dict(column) for column in columns]
        """The name, the kind and the encoding of each column."""

    @classmethod
    def fit(cls, title: str, parts: Sequence[Rows], preparing: Rows | None) -> "Encoder":
        """The encoder of declarations; the preparing rows decide what they leave open."""
        kinds, (missing, categories) = parts[0].kinds, parts[0].declared
        if absent := sorted({*missing, *categories} - set(kinds)):
            raise UserError(
                f"{title} has no input column {absent[0]!r}; name one of its inputs in missing= or categories=."
            )
        return cls([_encode_column(title, name, parts, preparing) for name in kinds])

    def __call__(self, rows: Rows) -> np.ndarray:
        values, indicators = [], []
        for column in self.columns:
            stored, gaps = rows.columns[column["name"]], rows.gaps(column["name"])
            if column["kind"] == "number":
                stored = np.where(gaps, np.float32(column["constant"]), stored)[:, None]
            elif column["kind"] == "category":
                stored = stored[:, None] == np.array(column["values"])
            values.append(stored.astype(np.float32))
            if column["indicator"]:
                indicators.append(gaps[:, None].astype(np.float32))
        return np.concatenate([*values, *indicators], axis=1)


def _encode_column(title: str, name: str, parts: Sequence[Rows], preparing: Rows | None) -> dict[str, Any]:
    """The encoding of one column."""
    rows = parts[0]
    kind, (missing, categories) = rows.kinds[name], rows.declared
    column: dict[str, Any] = {"name": name, "kind": kind, "indicator": name in missing}
    open_gaps = preparing is None and kind == "number" and not column["indicator"]
    if open_gaps and any(part.gaps(name).any() for part in parts):
        raise UserError(
            f"Column {name!r} of {title} has missing values; fill them, or declare them with missing={name}."
        )
    if preparing is not None and kind != "text":
        column["indicator"] |= bool(preparing.gaps(name).any())
    if kind == "number":
        numbers = np.sort(preparing.columns[name][~preparing.gaps(name)]) if preparing is not None else ()
        return column | {"constant": float(numbers[(len(numbers) - 1) // 2]) if len(numbers) else 0.0}
    if kind == "text":
        return column | {"size": int(rows.columns[name].shape[1])}
    if not (values := list(categories.get(name, ()))):
        values = [] if preparing is None else sorted(set(preparing.columns[name].tolist()) - {""})
        if not 0 < len(values) <= MOST_VALUES:
            problem = (
                f"more than {MOST_VALUES} values among the examples that prepare inputs"
                if values
                else "no values that are known in advance"
            )
            raise UserError(
                f"Column {name!r} of {title} has {problem}; list them with categories={name}=A|B, name the column in text= if"
                " it is text, or choose other inputs with columns=."
            )
    return column | {"values": values}


def hash_texts(texts: Sequence[str], size: int) -> np.ndarray:
    """One row of norm 1 per text: counts of its words and of neighbouring pairs, at positions that a fixed hash gives.

    No vocabulary and no frequencies are computed, so a row depends on its own text alone.
    """
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ImportError:
        raise missing_extra("scikit-learn", "data", "Reading a column of text") from None
    vectorizer = HashingVectorizer(n_features=size, ngram_range=(1, 2), dtype=np.float32)
    rows: np.ndarray = vectorizer.transform(texts).toarray()
    return rows
