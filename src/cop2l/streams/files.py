"""A user's own data in files: arrays, tables, folders of pictures."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError
from cop2l.streams.encoding import TEXT_SIZE, Declared, Encoder, Rows, name_list
from cop2l.streams.own import TEST_SHARE, class_numbers, labelled, prepare_part
from cop2l.streams.pictures import Pictures, class_folders, from_folders, picture_files
from cop2l.streams.scenarios import Labelled
from cop2l.streams.tables import SUFFIXES, Columns, Part, from_frame, from_table, is_table, read_table

ARRAYS = ("x", "y", "domain", "group")
MOST_TEXT = 2**20
TEST_NAMES = ("test", "val", "valid", "validation")
Stored = tuple[Any, Any, tuple[str, ...] | None]
"""The training part and the test part, if any, as a `Part` or a pyarrow table; the names of the classes, if they are listed."""
BAD_ARCHIVE = (ValueError, OSError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_data(
    path: Path,
    *,
    label: str = "label",
    columns: str | Sequence[str] | None = None,
    text: str | Sequence[str] | None = None,
    text_size: int = TEXT_SIZE,
    domain: str | None = None,
    group: str | None = None,
    task_order: str | Sequence[str] | None = None,
    missing: str | Sequence[str] | None = None,
    categories: Any = None,
    classes: int | Sequence[Any] | None = None,
    test_share: float = TEST_SHARE,
    seed: int = 0,
) -> Labelled:
    """The labelled data of one file or folder; what it is, is seen from its name and content."""
    if not isinstance(text_size, int) or not 1 <= text_size <= MOST_TEXT:
        raise UserError(f"text_size is {text_size}; give a whole number from 1 to {MOST_TEXT}.")
    chosen = Columns(
        str(label),
        None if columns is None else name_list(columns),
        name_list(text),
        text_size,
        None if domain is None else str(domain),
        None if group is None else str(group),
        task_order if isinstance(task_order, str) else None,
        Declared.of(missing, categories),
    )
    train, test, names = read_columns(path, chosen)
    description: dict[str, Any] = {"source": str(path)}
    if not isinstance(train, Part):
        train = from_table(train, path, chosen)
        kinds = train.x.kinds if isinstance(train.x, Rows) else {}
        test = test and from_table(test, path, chosen._replace(kinds=kinds))
        description["inputs"] = chosen.as_dict()
    elif chosen.order or missing or categories:
        raise UserError(
            f"{path} is no table; leave out missing and categories, and list task_order by names."
        )
    return labelled(
        path.stem,
        train,
        test,
        classes=names if classes is None else classes,
        task_order=None if isinstance(task_order, str) else task_order,
        test_share=test_share,
        seed=seed,
        description=description,
    )


def examples(
    source: Any, names: Sequence[str], known: Mapping[str, Any], shape: Sequence[int] = ()
) -> tuple[Any, Any, Any, Any]:
    """Inputs as models take them, class numbers, groups and domains (None: there are none), for a learner's classes.

    `source` is a path or a table, `known` what the run keeps of a table's columns. Pictures are
    resized to the shape of its inputs.
    """
    saved_columns = known.get("columns") or ()
    columns = Columns(
        known.get("label", "label"),
        [] if known.get("chosen") else None,
        text_size=known.get("text_size", TEXT_SIZE),
        domain=known.get("domain"),
        group=known.get("group"),
        order=known.get("order"),
        kinds={c["name"]: c["kind"] for c in saved_columns}
        or dict.fromkeys(known.get("names") or (), "number"),
    )
    path = source if isinstance(source, Path) else "The table"
    part = read_columns(source, columns)[0] if isinstance(source, Path) else from_frame(source)
    if not isinstance(part, Part):
        part = from_table(part, path, columns, labels=False)
        if isinstance(part.x, Rows):
            encoder = Encoder(saved_columns) if saved_columns else Encoder.fit(str(path), [part.x], None)
            part = part._replace(x=encoder(part.x))
    if isinstance(part.x, Pictures) and len(shape) == 3:
        part = part._replace(x=Pictures(part.x.sources, "L" if shape[0] == 1 else "RGB").array(shape[2]))
    x, y, groups = prepare_part(str(path), part)
    return x, None if y is None else class_numbers(y, names), groups, part.domain


def read_columns(path: Path, columns: Columns | None = None) -> Stored:
    """What a file or a folder holds, as it is."""
    if path.is_file():
        if is_table(path):
            return read_table([path], columns), None, None
        if path.suffix in (".npz", ".npy"):
            return (*(_npz if path.suffix == ".npz" else _npy)(path), None)
        kinds = ".npz (arrays x and y), .npy, .parquet, .csv or .tsv"
        raise UserError(f"{path} is not a kind of data file that is known; write it as {kinds}.")
    if not path.is_dir():
        raise UserError(f"There is no file or folder {path}; give the path of your data.")
    if (path / "x.npy").is_file():
        return (*_npy_folder(path), None)
    for folder, suffix in ((f, s) for f in (path, path / "data") for s in SUFFIXES):
        if train := sorted(folder.glob(f"train*{suffix}")):
            tests = (sorted(folder.glob(f"{name}*{suffix}")) for name in TEST_NAMES)
            test = next((files for files in tests if files), None)
            return read_table(train, columns), test and read_table(test, columns), None
    return _picture_folder(path)


def stored_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file: x_train is x, and integer features are multiplied by their scale."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            found = {key: content[key] for key in content.files}
    except BAD_ARCHIVE as error:
        raise UserError(f"{path} is not a readable .npz file of plain arrays; write it again.") from error
    for name in ARRAYS:
        if f"{name}_train" in found:
            found.setdefault(name, found.pop(f"{name}_train"))
    if (scale := found.get("scale")) is not None:
        for key in {"x", "x_test"} & found.keys():
            found[key] = found[key].astype(np.float32) * scale.astype(np.float32)
    return found


def _npz(path: Path) -> tuple[Part, Part | None]:
    arrays = stored_arrays(path)
    if "x" not in arrays:
        raise UserError(f"{path} has no arrays x and y (and x_test, y_test); it has: {', '.join(arrays)}.")
    return _parts(arrays)


def _npy(file: Path, mode: Any = None) -> tuple[Part, None]:
    """A plain array of inputs."""
    try:
        with file.open("rb") as stream:
            np.lib.format.read_magic(stream)  # an archive is none
        return Part(np.load(file, mmap_mode=mode, allow_pickle=False), None), None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{file} is not a readable .npy file; write it again.") from error


def _npy_folder(path: Path) -> tuple[Part, Part | None]:
    """Plain arrays, mapped into memory rather than read."""
    keys = (*ARRAYS, *(f"{name}_test" for name in ARRAYS))
    found = {key: _npy(file, "r")[0].x for key in keys if (file := path / f"{key}.npy").is_file()}
    if "y" not in found:
        raise UserError(f"There is no y.npy beside {path / 'x.npy'}; add the labels.")
    return _parts(found)


def _parts(arrays: dict[str, Any]) -> tuple[Part, Part | None]:
    train, test = (Part(*(arrays.get(name + end) for name in ARRAYS)) for end in ("", "_test"))
    return train, None if test.x is None and test.y is None else test


def _picture_folder(path: Path) -> Stored:
    """train/<class>/ and test/<class>/, or <class>/ alone, or pictures without labels."""
    train = path / "train" if (path / "train").is_dir() else path
    names = tuple(class_folders(train))
    if not names and (files := picture_files(path)):
        return Part(Pictures(files), None), None, None
    if not names:
        raise UserError(
            f"There is no data in {path} that is known; give one subfolder of pictures per class."
        )
    test = next((path / name for name in TEST_NAMES if train != path and (path / name).is_dir()), None)
    if strange := sorted(set(class_folders(test)) - set(names)) if test else []:
        raise UserError(
            f"{strange[0]} is a class without training pictures in {path}; remove it or add some."
        )
    pairs = [from_folders(folder, names) if folder else None for folder in (train, test)]
    parts = [pair and Part(pair[0], np.array(names)[pair[1]]) for pair in pairs]
    return parts[0], parts[1], names
