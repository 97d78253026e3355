"""The rows that the loader hands over: x-1.npy, y-1.npy, g-1.npy (groups) of task 1, tx-1.npy, ty-1.npy of its test part."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l.kernel.form import Content, open_regular, sha256, table, text
from cop2l.kernel.options import choice, many, maybe
from cop2l.kernel.samples import ROWS, numbers
from cop2l.kernel.verdict import PARTS

LIST, FORMAT, MOST = "arrays.json", "cop2l-arrays 1", 2**24
yes_or_no = choice(True, False)
CONTENT = table(
    format=choice(FORMAT), certificate=sha256, groups=many(text), whole=yes_or_no, draws=yes_or_no, command=maybe(text),
    notes=table(**dict.fromkeys(PARTS, many(text))),
)  # fmt: skip
Samples = Mapping[int, tuple[Any, ...]]
"""Of each task (x, y), or (x, y, names of groups)."""


def size_of(tasks: Samples) -> int:
    """How many bytes the rows take."""
    return sum(len(x) * (numbers(x[:1]).nbytes + 16) for x, *_ in tasks.values() if len(x))


def write_arrays(folder: Path, certificate: str, tasks: Samples, tests: Samples | None = None, **others: Any) -> None:
    """Write the rows of each task and of its test part, for the certificate with this digest.

    `whole`: nothing was withheld from them yet. `draws`: rows that repeat are independent draws of discrete data.
    """
    names: dict[str, int] = {}
    for prefix, rows in (("", tasks), ("t", tests or {})):
        for t, (x, y, *groups) in rows.items():
            _write(folder / f"{prefix}x-{t}.npy", x)
            np.save(folder / f"{prefix}y-{t}.npy", numbers(y))
            if groups and groups[0] is not None:
                np.save(folder / f"{prefix}g-{t}.npy", [names.setdefault(str(name), len(names)) for name in groups[0]])
    usual = {"whole": False, "draws": False, "command": None, "notes": dict.fromkeys(PARTS, ())}
    content = {"format": FORMAT, "certificate": certificate, "groups": list(names), **usual, **others}
    (folder / LIST).write_text(json.dumps(content), encoding="utf-8")


def _write(path: Path, x: Any) -> None:
    """Row by row, so that a memory map is never held as a whole; bfloat16, which numpy lacks, as two bytes that are no number."""
    like = numbers(x[:0])
    with path.open("wb") as file:
        head = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False, "shape": (len(x), *like.shape[1:])}
        np.lib.format.write_array_header_2_0(file, head)
        for start in range(0, len(x), ROWS):
            file.write(numbers(x[start : start + ROWS]).tobytes())


def read_arrays(folder: Path) -> tuple[Content, dict[int, tuple[Any, ...]], dict[int, tuple[Any, ...]]]:
    """The list, the rows of each task, and those of its test part; inputs are memory maps."""
    with open_regular(folder / LIST) as file:
        content: Content = CONTENT(json.loads(file.read(MOST)), LIST)
    names = np.array(content["groups"], dtype=object)

    def rows(prefix: str) -> dict[int, tuple[Any, ...]]:
        found = {}
        for path in folder.glob(f"{prefix}x-*.npy"):
            t, groups = path.stem.partition("-")[2], folder / path.name.replace("x-", "g-")
            labels, more = np.load(folder / path.name.replace("x-", "y-")), [names[np.load(groups)]] if groups.exists() else []
            found[int(t)] = (_mapped(path), labels, *more)
        return dict(sorted(found.items()))

    return content, rows(""), rows("t")


def _mapped(path: Path) -> Any:
    x = np.load(path, mmap_mode="c")
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == np.dtype("V2") else x


class Subset:
    """Some rows of an array, read from it when they are asked for."""

    def __init__(self, x: Any, rows: np.ndarray) -> None:
        self.x, self.rows, self.shape = x, rows, (len(rows), *x.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return self.x[self.rows[at]]


def take_rows(samples: Samples, rows: Mapping[int, np.ndarray]) -> dict[int, tuple[Any, ...]]:
    """These rows of each task."""
    return {t: (Subset(x, rows[t]), *(column[rows[t]] for column in others)) for t, (x, *others) in samples.items()}
