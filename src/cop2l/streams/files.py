"""A user's own data in files: arrays, tables, folders of pictures."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError, advise
from cop2l.streams.encoding import STORED, Columns, Encoder, Rows
from cop2l.streams.own import TEST_SHARE, checked_part, class_numbers, from_parts, preparation
from cop2l.streams.pictures import Pictures, class_folders, from_folders, picture_files
from cop2l.streams.scenarios import Labelled
from cop2l.streams.tables import SUFFIXES, Part, from_frame, from_table, is_table, read_table

ARRAYS = ("x", "y", "domain", "group")
LARGEST_TEXT_SIZE = 2**20
TEST_NAMES = ("test", "val", "valid", "validation")
Stored = tuple[Any, Any, tuple[str, ...] | None]
"""Training and test part, each a `Part`, a pyarrow table or None, and the names of the classes or None."""
BAD_ARCHIVE = (ValueError, OSError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_data(
    path: Path,
    *,
    classes: int | Sequence[Any] | None = None,
    test_share: float = TEST_SHARE,
    seed: int = 0,
    task_order: str | Sequence[str] | None = None,
    **options: Any,
) -> Labelled:
    """The labelled data in a file or a folder, whose name and content tell its format; options choose `Columns`."""
    columns = Columns.of({**options, "task_order": task_order if isinstance(task_order, str) else None})
    if not isinstance(columns.text_size, int) or not 1 <= columns.text_size <= LARGEST_TEXT_SIZE:
        raise UserError(
            f"text_size is {columns.text_size}; give a whole number from 1 to {LARGEST_TEXT_SIZE}."
        )
    train, test, names = read_columns(path, columns)
    description: dict[str, Any] = {"source": str(path)}
    if not isinstance(train, Part):
        train = from_table(train, path, columns)
        learned = train.x.columns if isinstance(train.x, Rows) else columns
        test = test and from_table(test, path, learned)
        description["inputs"] = columns.as_dict()
    elif columns.task_order or columns.drop or columns.missing or columns.categories:
        raise UserError(
            f"{path} is no table; leave out drop, missing and categories, and list the domains in task_order=."
        )
    return from_parts(
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
    source: Any, names: Sequence[str], inputs: Mapping[str, Any], shape: Sequence[int] = ()
) -> tuple[Any, Any, Any, Any]:
    """Inputs, class numbers, groups and domains for a learner with classes `names`; None for those that are absent.

    `source` is a path or a table, and `inputs` what the run stored about the columns. Pictures are resized to `shape`.
    """
    stored_columns = inputs.get("columns") or ()
    columns = Columns(
        **{name: inputs[name] for name in STORED if name in inputs},
        columns=[] if inputs.get("chosen") else None,
        kinds={c["name"]: c["kind"] for c in stored_columns}
        or dict.fromkeys(inputs.get("names") or (), "number"),
    )
    title = str(source) if isinstance(source, Path) else "The table"
    part = read_columns(source, columns)[0] if isinstance(source, Path) else from_frame(source)
    if not isinstance(part, Part):
        part = from_table(part, title, columns, labels=False)
        if isinstance(part.x, Rows):
            encoder = Encoder(stored_columns) if stored_columns else Encoder.fit(title, [part.x], None)
            _compare(title, encoder, part.x)
            part = part._replace(x=encoder(part.x))
    if isinstance(part.x, Pictures):
        if len(shape) != 3:
            raise UserError(
                f"{title} holds pictures, and the learner takes {tuple(shape)}; give the inputs that it learned."
            )
        part = part._replace(x=Pictures(part.x.sources, "L" if shape[0] == 1 else "RGB").array(shape[2]))
    x, y, domain, groups, _ = checked_part(title, part, labels=False)
    return preparation(x)(x), None if y is None else class_numbers(y, names), groups, domain


def check_columns(path: Path, columns: Sequence[Mapping[str, Any]]) -> None:
    """Warn of the columns of a table, among those that a run learned, with values unlike the learned ones."""
    names = read_table([path]).column_names
    learned = [column for column in columns if column["name"] in names]
    chosen = Columns(None, [], kinds={column["name"]: column["kind"] for column in learned})
    if learned:
        _compare(str(path), Encoder(learned), from_table(read_table([path], chosen), path, chosen).x)


def _compare(title: str, encoder: Encoder, rows: Rows) -> None:
    if differences := encoder.differences(rows):
        advise(f"{title} differs from what was learned: {'; '.join(differences)}; check these columns.")


def read_columns(path: Path, columns: Columns | None = None) -> Stored:
    """The content of a file or a folder, before its values are checked."""
    if path.is_file():
        if is_table(path):
            return read_table([path], columns), None, None
        if path.suffix in (".npz", ".npy"):
            return (*(_npz if path.suffix == ".npz" else _npy)(path), None)
        raise UserError(
            f"{path} is no data file; write .npz (arrays x and y), .npy, .parquet, .csv or .tsv instead."
        )
    if not path.is_dir():
        raise UserError(f"There is no file or folder {path}; give the path of your data.")
    if (path / "x.npy").is_file():
        return (*_npy_folder(path), None)
    for folder, suffix in ((f, s) for f in (path, path / "data") for s in SUFFIXES):
        if train := sorted(folder.glob(f"train*{suffix}")):
            tests = (sorted(folder.glob(f"{name}*{suffix}")) for name in TEST_NAMES)
            test = next(filter(None, tests), None)
            return read_table(train, columns), test and read_table(test, columns), None
    return _picture_folder(path)


def stored_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, with x_train named x, and x multiplied by the array scale."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files}
    except BAD_ARCHIVE as error:
        raise UserError(f"{path} is not a readable .npz file of plain arrays; write it again.") from error
    for name in ARRAYS:
        if f"{name}_train" in arrays:
            arrays.setdefault(name, arrays.pop(f"{name}_train"))
    if (scale := arrays.get("scale")) is not None:
        for key in {"x", "x_test"} & arrays.keys():
            arrays[key] = arrays[key].astype(np.float32) * scale.astype(np.float32)
    return arrays


def _npz(path: Path) -> tuple[Part, Part | None]:
    arrays = stored_arrays(path)
    if "x" not in arrays:
        raise UserError(
            f"{path} has no array x; write the arrays x and y (and x_test, y_test). It has: {', '.join(arrays)}."
        )
    return _parts(arrays)


def _npy(file: Path) -> tuple[Part, None]:
    """The inputs in a plain array, as a memory map."""
    try:
        return Part(np.lib.format.open_memmap(file, mode="r"), None), None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{file} is not a readable .npy file; write it again.") from error


def _npy_folder(path: Path) -> tuple[Part, Part | None]:
    """The parts in a folder of plain arrays, as memory maps."""
    keys = (*ARRAYS, *(f"{name}_test" for name in ARRAYS))
    arrays = {key: _npy(file)[0].x for key in keys if (file := path / f"{key}.npy").is_file()}
    if "y" not in arrays:
        raise UserError(f"There is no y.npy beside {path / 'x.npy'}; add this file of labels.")
    return _parts(arrays)


def _parts(arrays: dict[str, Any]) -> tuple[Part, Part | None]:
    train, test = (Part(*(arrays.get(name + end) for name in ARRAYS)) for end in ("", "_test"))
    return train, None if test.x is None and test.y is None else test


def _picture_folder(path: Path) -> Stored:
    """The parts in train/<class>/ and test/<class>/, or in <class>/ alone, or pictures without labels."""
    train = path / "train" if (path / "train").is_dir() else path
    names = tuple(class_folders(train))
    if not names and (files := picture_files(path)):
        return Part(Pictures(files), None), None, None
    if not names:
        raise UserError(
            f"{path} holds no arrays, tables or pictures; give one subfolder of pictures per class, or another form of data."
        )
    test = next((path / name for name in TEST_NAMES if train != path and (path / name).is_dir()), None)
    if test and (untrained := sorted(set(class_folders(test)) - set(names))):
        raise UserError(
            f"The class {untrained[0]} has no training pictures in {path}; remove its folder, or add such pictures."
        )
    pairs = [from_folders(folder, names) if folder else None for folder in (train, test)]
    parts = [pair and Part(pair[0], np.array(names)[pair[1]]) for pair in pairs]
    return parts[0], parts[1], names
