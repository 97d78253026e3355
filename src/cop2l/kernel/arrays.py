"""The arrays that the loader writes: x-1.npy, y-1.npy, g-1.npy (groups) of task 1, tx-1.npy, ty-1.npy of its test part."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l.kernel.form import Content, object_of, open_regular, sha256, text_line
from cop2l.kernel.options import choice_of, list_of, make_rule, optional
from cop2l.kernel.samples import ROWS, numbers
from cop2l.kernel.verdict import PARTS

INDEX, FORMAT, MAX_BYTES = "arrays.json", "cop2l-arrays 1", 2**24
boolean = choice_of(True, False)
# a table may have many columns to type
command_line = make_rule(lambda value: type(value) is str and len(value) <= 10**4 and value.isprintable(), "a printable command")
INDEX_CONTENT = object_of(
    format=choice_of(FORMAT), certificate=sha256, groups=list_of(text_line), whole=boolean, draws=boolean,
    command=optional(command_line), notes=object_of(**dict.fromkeys(PARTS, list_of(text_line))),
)  # fmt: skip
Samples = Mapping[int, tuple[Any, ...]]
"""The sample of each task: (x, y), or (x, y, names of groups)."""


def write_arrays(folder: Path, certificate: str, tasks: Samples, tests: Samples | None = None, **fields: Any) -> None:
    """Write the rows of each task and of its test part, for the certificate with this digest; `fields` belong to the index.

    whole: nothing was withheld from the rows yet. draws: repeated rows are independent draws of discrete data. command: what
    the auditor can type. notes: sentences of the loader for the verdict.
    """
    names: dict[str, int] = {}
    for prefix, rows in (("", tasks), ("t", tests or {})):
        for t, (x, y, *groups) in rows.items():
            _write(folder / f"{prefix}x-{t}.npy", x)
            np.save(folder / f"{prefix}y-{t}.npy", numbers(y))
            if groups and groups[0] is not None:
                np.save(folder / f"{prefix}g-{t}.npy", [names.setdefault(str(name), len(names)) for name in groups[0]])
    defaults = {"whole": False, "draws": False, "command": None, "notes": dict.fromkeys(PARTS, ())}
    content = {"format": FORMAT, "certificate": certificate, "groups": list(names), **defaults, **fields}
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


def _write(path: Path, x: Any) -> None:
    """Write an array in blocks of rows, so that a memory map is never in memory as a whole."""
    empty = numbers(x[:0])
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(empty.dtype), "fortran_order": False, "shape": (len(x), *empty.shape[1:])}
        np.lib.format.write_array_header_2_0(file, header)
        for start in range(0, len(x), ROWS):
            file.write(numbers(x[start : start + ROWS]).tobytes())


def read_arrays(folder: Path) -> tuple[Content, dict[int, tuple[Any, ...]], dict[int, tuple[Any, ...]]]:
    """The index, the rows of each task, and those of its test part; inputs are memory maps."""
    with open_regular(folder / INDEX) as file:
        content: Content = INDEX_CONTENT(json.loads(file.read(MAX_BYTES)), INDEX)
    names = np.array(content["groups"], dtype=object)

    def samples(prefix: str) -> dict[int, tuple[Any, ...]]:
        by_task = {}
        for path in folder.glob(f"{prefix}x-*.npy"):
            t, labels, groups = path.stem.partition("-")[2], path.name.replace("x-", "y-"), folder / path.name.replace("x-", "g-")
            columns = [np.load(folder / labels), *([names[np.load(groups)]] if groups.exists() else [])]
            by_task[int(t)] = (_memory_map(path), *columns)
        return dict(sorted(by_task.items()))

    return content, samples(""), samples("t")


def _memory_map(path: Path) -> Any:
    """The array in a file, without reading it; bfloat16, which numpy lacks, as a tensor."""
    x = np.load(path, mmap_mode="c")
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == np.dtype("V2") else x


class Subset:
    """Some rows of an array, read from it when they are indexed."""

    def __init__(self, x: Any, rows: np.ndarray) -> None:
        self.x, self.rows, self.shape = x, rows, (len(rows), *x.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, positions: Any) -> Any:
        return self.x[self.rows[positions]]


def take_rows(samples: Samples, rows: Mapping[int, np.ndarray]) -> dict[int, tuple[Any, ...]]:
    """These rows of each task that has some."""
    return {
        t: (Subset(x, rows[t]), *(column[rows[t]] for column in columns)) for t, (x, *columns) in samples.items() if t in rows
    }
