"""Columns of a table as inputs of a model: gaps, categories and hashed text become numbers.

What decides is declared, or is made of the prior part of the first task, which certifies nothing: a certified row never
changes how rows are encoded, and the width is fixed before the first task is learned. So the encoding is, like initial
parameters, a function of the prior part and the declaration, and every bound holds as it is (docs/data.md).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams.task import fingerprint

MOST_VALUES = 100
"""Categories that the prior part may give a column."""
TEXT_SIZE = 1024
"""Numbers per column of text, by default."""


class Declared(NamedTuple):
    """What the user says of a table's gaps and categories."""

    missing: tuple[str, ...] = ()
    """Columns that get an indicator of their gaps."""
    categories: Mapping[str, tuple[str, ...]] = {}
    """The values of a column; none: those of the prior part."""

    @classmethod
    def of(cls, missing: Any, categories: Any) -> "Declared":
        """From names of columns, and from COLUMN or COLUMN=VALUE|VALUE, or a mapping to lists.

        >>> Declared.of("age", ["zip", "city=Bern|Genf"])
        Declared(missing=('age',), categories={'zip': (), 'city': ('Bern', 'Genf')})
        """
        if not isinstance(categories, Mapping):
            pairs = [str(text).partition("=") for text in name_list(categories)]
            categories = {name: tuple(values.split("|")) if values else () for name, _, values in pairs}
        values = {str(name): tuple(map(str, values or ())) for name, values in categories.items()}
        return cls(tuple(name_list(missing)), values)


def name_list(given: Any) -> list[str]:
    """One name or several; what reads as a number is a name here, too."""
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return [str(name) for name in several]


class Rows:
    """Rows of a table as they are stored: one array per column.

    Numbers have NaN for a gap, categories the empty text; text is hashed already.
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
        """Which rows have no value in a column."""
        values, kind = self.columns[name], self.kinds[name]
        gaps = (
            np.isnan(values)
            if kind == "number"
            else values == ""
            if kind == "category"
            else ~values.any(axis=1)
        )
        return np.asarray(gaps)

    def fingerprint(self, y: Any) -> str:
        """That of the inputs where they are numbers without gaps; else one of the stored columns."""
        if all(
            kind != "category" and not (kind == "number" and self.gaps(name).any())
            for name, kind in self.kinds.items()
        ):
            x = np.asarray(self)
            return fingerprint(x, y)
        digest = hashlib.sha256(b"cop2l table 1\n")
        for name, values in self.columns.items():
            content = "\n".join(values).encode() if self.kinds[name] == "category" else values.tobytes()
            digest.update(f"{name!r} {len(content)}\n".encode() + content)
        return hashlib.sha256(digest.digest() + np.asarray(y, np.int64).tobytes()).hexdigest()


class Encoder:
    """From stored rows to inputs: numbers, one-hot categories and text column by column, then the indicators of gaps.

    >>> rows = Rows({"age": np.float32([1, np.nan]), "city": np.array(["Bern", "Rom"])},
    ...             {"age": "number", "city": "category"}, Declared(("age",), {"city": ("Bern", "Genf")}))
    >>> Encoder.fit("people", [rows], None)(rows)
    array([[1., 1., 0., 0.],
           [0., 0., 0., 1.]], dtype=float32)
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self.columns = [dict(column) for column in columns]
        """Of each column its name, its kind, and what was decided about it."""

    @classmethod
    def fit(cls, title: str, parts: Sequence[Rows], prior: Rows | None) -> "Encoder":
        """What is declared with the rows, and for the rest what the prior part gives."""
        kinds, (missing, categories) = parts[0].kinds, parts[0].declared
        if strange := sorted({*missing, *categories} - set(kinds)):
            raise UserError(
                f"{title} has no input column {strange[0]!r}; declare gaps and categories of its inputs."
            )
        return cls([_decided(title, name, parts, prior) for name in kinds])

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


def _decided(title: str, name: str, parts: Sequence[Rows], prior: Rows | None) -> dict[str, Any]:
    rows = parts[0]
    kind, (missing, categories) = rows.kinds[name], rows.declared
    column: dict[str, Any] = {"name": name, "kind": kind, "indicator": name in missing}
    open_gaps = prior is None and kind == "number" and not column["indicator"]
    if open_gaps and any(part.gaps(name).any() for part in parts):
        raise UserError(
            f"Column {name!r} of {title} has missing values; fill them, or declare missing={name}."
        )
    if prior is not None and kind != "text":
        column["indicator"] |= bool(prior.gaps(name).any())
    if kind == "number":
        numbers = np.sort(prior.columns[name][~prior.gaps(name)]) if prior is not None else ()
        return column | {"constant": float(numbers[(len(numbers) - 1) // 2]) if len(numbers) else 0.0}
    if kind == "text":
        return column | {"size": int(rows.columns[name].shape[1])}
    if not (values := list(categories.get(name, ()))):
        values = [] if prior is None else sorted(set(prior.columns[name].tolist()) - {""})
        if not 0 < len(values) <= MOST_VALUES:
            found = (
                f"{len(values)} values among the prior examples"
                if values
                else "no values that are known in advance"
            )
            raise UserError(
                f"Column {name!r} of {title} has {found}; list them as categories={name}=A|B, name it in text= if it is"
                " text, or choose the inputs with columns=."
            )
    return column | {"values": values}


def hash_texts(texts: Sequence[str], size: int) -> np.ndarray:
    """One row of length 1 per text: its words and pairs of neighbours, counted in places that a fixed hash gives them.

    There is no vocabulary and there are no frequencies over the texts, so that a row depends on its own text alone.
    """
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ImportError:
        raise missing_extra("scikit-learn", "data", "Reading a column of text") from None
    rule = HashingVectorizer(n_features=size, ngram_range=(1, 2), dtype=np.float32)
    rows: np.ndarray = rule.transform(texts).toarray()
    return rows
