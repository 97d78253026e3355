"""The encoding of a table: gaps, categories and text become numbers.

The encoding depends only on declarations and on rows of the first task that do not certify. A certified
row never changes the encoding of other rows or the number of inputs, so every bound holds unchanged (docs/data.md).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, missing_extra

MOST_VALUES = 100
"""The largest number of categories that these rows may give a column."""
TEXT_SIZE = 1024
"""The default number of inputs per column of text."""
COLUMNS = ("label", "columns", "text", "domain", "group", "drop", "missing", "categories", "task_order")
"""The options of a table that name columns, or values in them."""
STORED = ("label", "domain", "group", "task_order", "drop", "text_size")
"""The choices of columns that a run stores."""


class Columns(NamedTuple):
    """The columns of a table by their use, as the options of `streams.load` name them."""

    label: str | None = "label"
    columns: Sequence[str] | None = None
    """The inputs; None: all columns without another use."""
    text: Sequence[str] = ()
    text_size: int = TEXT_SIZE
    domain: str | None = None
    group: str | None = None
    task_order: str | None = None
    """Numbers or dates that order the domains: the domain with the least comes first."""
    drop: Sequence[str] = ()
    missing: Sequence[str] = ()
    """Columns that get an indicator of their gaps."""
    categories: Mapping[str, Sequence[str]] = {}
    """The values of each column; empty: those of the preparing rows."""
    kinds: Mapping[str, str] = {}
    """The inputs of a run, each with its kind: number, category or text."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Columns":
        """From options: one name or several, and categories as COLUMN or COLUMN=VALUE|VALUE.

        >>> Columns.of({"missing": "age", "categories": ["zip", "city=Bern|Genf"], "text": None})[-3:-1]
        (['age'], {'zip': [], 'city': ['Bern', 'Genf']})
        """
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        for name, value in chosen.items():
            if name in ("columns", "text", "drop", "missing", "categories"):
                chosen[name] = name_list(value)
            elif name in ("label", "domain", "group"):
                chosen[name] = str(value)
        pairs = [text.partition("=") for text in chosen.pop("categories", ())]
        return cls(**chosen, categories={name: list(filter(None, v.split("|"))) for name, _, v in pairs})

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that hold names, not numbers: 01 and 1 differ."""
        texts = [name for name, kind in self.kinds.items() if kind in ("category", "text")]
        beside = [name for name in (self.label, self.domain, self.group, self.task_order) if name is not None]
        return (*beside, *self.text, *self.categories, *texts)

    def as_dict(self) -> dict[str, Any]:
        """The choices that a run stores."""
        return {**{name: getattr(self, name) for name in STORED}, "chosen": self.columns is not None}


def name_list(names: Any) -> list[str]:
    """One name, several or None, as a list of texts; a number is a name too."""
    return [str(name) for name in (names if isinstance(names, list | tuple) else [names]) if name is not None]


class Rows:
    """Stored rows of a table, by column: numbers (a chunked array of pyarrow), texts of categories, or hashed text.

    A gap is NaN among numbers and an empty text among categories. Choosing rows copies no column.
    """

    def __init__(self, stored: Mapping[str, Any], columns: Columns, index: np.ndarray | None = None) -> None:
        self.stored, self.columns = stored, columns
        self.index = np.arange(len(next(iter(stored.values())))) if index is None else index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> "Rows":
        return Rows(self.stored, self.columns, self.index[rows])

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The values of a column, and whether each is a gap."""
        stored, kind = self.stored[name], self.columns.kinds[name]
        first, last = self.index.min(initial=len(stored)), self.index.max(initial=-1)
        values = np.asarray(stored[int(first) : int(last) + 1])[self.index - first]
        if kind == "number":
            return values, np.isnan(values)
        return values, values == "" if kind == "category" else ~values.any(axis=1)

    def fingerprint(self, y: Any) -> str:
        """The fingerprint of the stored columns and of the labels."""
        digest = hashlib.sha256(b"cop2l table 2\n")
        for name, kind in self.columns.kinds.items():
            values, _ = self.column(name)
            content = "\n".join(values).encode() if kind == "category" else values.tobytes()
            digest.update(f"{name!r} {len(content)}\n".encode() + content)
        return hashlib.sha256(digest.digest() + np.asarray(y, np.int64).tobytes()).hexdigest()


class Encoder:
    """From stored rows to inputs: column by column numbers, one-hot categories or text, then the indicators of gaps.

    >>> columns = Columns(missing=["age"], categories={"city": ["Bern", "Genf"]}, kinds={"age": "number", "city": "category"})
    >>> rows = Rows({"age": np.float32([1, np.nan]), "city": np.array(["Bern", "Rom"])}, columns)
    >>> encoder = Encoder.fit("people", [rows], None)
    >>> encoder(rows)
    array([[1., 1., 0., 0.],
           [0., 0., 0., 1.]], dtype=float32)
    >>> encoder.differences(rows)
    ["'city' is unknown ('Rom') in 1 of 2 rows"]
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self.columns = [dict(column) for column in columns]
        """The name, the kind and the encoding of each column; the range of its numbers is for `differences` alone."""

    @classmethod
    def fit(cls, title: str, parts: Sequence[Rows], preparing: Rows | None) -> "Encoder":
        """The encoder of declarations; the preparing rows decide what they leave open."""
        return cls([_encode_column(title, name, parts, preparing) for name in parts[0].columns.kinds])

    def __call__(self, rows: Rows) -> np.ndarray:
        inputs, indicators = [], []
        for column in self.columns:
            values, gaps = rows.column(column["name"])
            if column["kind"] == "number":
                values = np.where(gaps, np.float32(column["constant"]), values)[:, None]
            elif column["kind"] == "category":
                values = values[:, None] == np.array(column["values"])
            inputs.append(values.astype(np.float32, copy=False))
            if column["indicator"]:
                indicators.append(gaps[:, None].astype(np.float32))
        return np.concatenate([*inputs, *indicators], axis=1)

    def differences(self, rows: Rows) -> list[str]:
        """A phrase for each column of these rows with values unlike those that were learned."""
        phrases = []
        for column in self.columns:
            values, gaps = rows.column(column["name"])
            if gaps.all():
                new, reason = gaps, "missing"
            elif column["kind"] == "category":
                new = ~gaps & ~np.isin(values, column["values"])
                reason = f"unknown ({', '.join(map(repr, np.unique(values[new]).tolist()[:3]))})"
            elif column.get("range"):
                low, high = column["range"]
                new = (values < 2 * low - high) | (values > 2 * high - low)
                reason = f"far outside {low:g} to {high:g}"
            else:
                continue
            if new.any():
                phrases.append(f"{column['name']!r} is {reason} in {new.sum()} of {len(rows)} rows")
        return phrases


def _encode_column(title: str, name: str, parts: Sequence[Rows], preparing: Rows | None) -> dict[str, Any]:
    """The encoding of one column."""
    columns = parts[0].columns
    column: dict[str, Any] = {"name": name, "kind": columns.kinds[name], "indicator": name in columns.missing}
    if column["kind"] == "text":
        return column | {"size": columns.text_size}
    values, gaps = (parts[0][:0] if preparing is None else preparing).column(name)
    column["indicator"] |= bool(gaps.any())
    if column["kind"] == "number":
        numbers = np.concatenate([part.column(name)[0] for part in parts])
        present, learned = numbers[~np.isnan(numbers)], np.sort(values[~gaps])
        if preparing is None and not column["indicator"] and len(present) < len(numbers):
            raise UserError(
                f"Column {name!r} of {title} has missing values; fill them, or declare them with missing={name}."
            )
        if len(present):
            column["range"] = [float(present.min()), float(present.max())]
        return column | {"constant": float(learned[(len(learned) - 1) // 2]) if len(learned) else 0.0}
    if not (names := columns.categories.get(name)):
        names = np.unique(values[~gaps]).tolist()
        if not 0 < len(names) <= MOST_VALUES:
            problem = (
                f"more than {MOST_VALUES} values among the examples that prepare inputs"
                if names
                else "no values that are known in advance"
            )
            raise UserError(
                f"Column {name!r} of {title} has {problem}; list them with categories={name}=A|B, name the column in text= if"
                f" it is text, or leave it out with drop=."
            )
    return column | {"values": names}


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
