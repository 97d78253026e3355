"""A user's own data in files: arrays, tables, folders of pictures, dataset folders of Arrow files."""

import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams.own import TEST_SHARE, Part, labelled
from cop2l.streams.pictures import Pictures, class_folders, from_folders
from cop2l.streams.scenarios import Labelled
from cop2l.streams.text import SIZE, hashed

TABLES = (".parquet", ".csv")
ARRAYS = ("x", "y", "domain", "group")
MOST_TEXT = 2**20
TEST_NAMES = ("test", "val", "valid", "validation")


def read(
    path: Path,
    *,
    label: str = "label",
    columns: str | Sequence[str] | None = None,
    text: str | Sequence[str] | None = None,
    text_size: int = SIZE,
    domain: str | None = None,
    group: str | None = None,
    classes: int | Sequence[Any] | None = None,
    test_share: float = TEST_SHARE,
    seed: int = 0,
) -> Labelled:
    """The labelled data of one file or folder; what it is, is seen from its name and content."""
    if not isinstance(text_size, int) or not 1 <= text_size <= MOST_TEXT:
        raise UserError(f"text_size is {text_size}; give a whole number from 1 to {MOST_TEXT}.")
    single = [None if name is None else str(name) for name in (domain, group)]
    chosen = Columns(str(label), _names(columns), _names(text) or (), text_size, single[0], single[1])
    names: tuple[str, ...] | None = None
    train: Part
    test: Part | None
    if path.is_file() and path.suffix == ".npz":
        train, test = _npz(path)
    elif path.is_file() and path.suffix in TABLES:
        train, test = from_table(table([path]), path, chosen), None
    elif path.is_file():
        raise unknown_kind(path)
    elif (path / "x.npy").is_file():
        train, test = _npy(path)
    elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        train, test, names = _arrow_folder(path, chosen)
    elif tables := _tables(path):
        train = from_table(table(tables[0]), tables[0][0], chosen)
        test = from_table(table(tables[1]), tables[1][0], chosen) if tables[1] else None
    else:
        train, test, names = _picture_folder(path)
    return labelled(
        path.stem,
        train,
        test,
        classes=names if classes is None else classes,
        test_share=test_share,
        seed=seed,
        description={"source": str(path)},
    )


def unknown_kind(path: Path) -> UserError:
    """The error for a file that nobody here reads."""
    return UserError(f"{path} is not a kind of data file that is known; write it as .npz, .parquet or .csv.")


class Columns(NamedTuple):
    """The columns of a table that are named: labels, inputs (None: all others), texts among them, domains, groups."""

    label: str | None
    inputs: Sequence[str] | None
    text: Sequence[str]
    text_size: int
    domain: str | None
    group: str | None
    needed: bool = True


def _names(given: Any) -> list[str] | None:
    """The names of columns; what reads as a number is a name here, too."""
    several = given if isinstance(given, list | tuple) else [given]
    return None if given is None else [str(name) for name in several]


def stored_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file as they are stored."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            return {key: content[key] for key in content.files}
    except (ValueError, OSError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is not a readable .npz file of plain arrays; write it again.") from error


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file of own data: x_train is x, and integer features are multiplied by their scale."""
    found = stored_arrays(path)
    for name in ARRAYS:
        if f"{name}_train" in found:
            found.setdefault(name, found.pop(f"{name}_train"))
    if (scale := found.get("scale")) is not None:
        for key in {"x", "x_test"} & found.keys():
            found[key] = found[key].astype(np.float32) * scale.astype(np.float32)
    return found


def _npz(path: Path) -> tuple[Part, Part | None]:
    found = arrays(path)
    if "x" not in found or "y" not in found:
        raise UserError(
            f"{path} has no arrays x and y (and x_test, y_test); it has: {', '.join(sorted(found))}."
        )
    return _both(found)


def _npy(path: Path) -> tuple[Part, Part | None]:
    """Plain arrays, mapped into memory rather than read."""
    arrays = {}
    for key in (*ARRAYS, *(f"{name}_test" for name in ARRAYS)):
        file = path / f"{key}.npy"
        if file.is_file():
            try:
                arrays[key] = np.load(file, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise UserError(f"{file} is not a readable .npy file; write it again.") from error
    if "y" not in arrays:
        raise UserError(f"There is no y.npy beside {path / 'x.npy'}; add the labels.")
    return _both(arrays)


def _both(arrays: dict[str, Any]) -> tuple[Part, Part | None]:
    train = Part(*(arrays.get(name) for name in ARRAYS))
    if "x_test" not in arrays and "y_test" not in arrays:
        return train, None
    return train, Part(*(arrays.get(f"{name}_test") for name in ARRAYS))


def _picture_folder(path: Path) -> tuple[Part, Part | None, tuple[str, ...]]:
    """train/<class>/ and test/<class>/, or <class>/ alone."""
    train = path / "train" if (path / "train").is_dir() else path
    names = tuple(class_folders(train))
    if not names:
        raise UserError(
            f"There is no data in {path} that is known; give one subfolder of pictures per class."
        )
    x, y = from_folders(train, names)
    test = next((path / name for name in TEST_NAMES if train != path and (path / name).is_dir()), None)
    if test is None:
        return Part(x, np.array(names)[y]), None, names
    strange = sorted(set(class_folders(test)) - set(names))
    if strange:
        raise UserError(f"{test / strange[0]} is a class without training pictures; remove it or add some.")
    x_test, y_test = from_folders(test, names)
    return Part(x, np.array(names)[y]), Part(x_test, np.array(names)[y_test]), names


def _tables(path: Path) -> tuple[list[Path], list[Path]] | None:
    """Files train*.parquet and test*.parquet (or .csv), here or in data/."""
    for folder in (path, path / "data"):
        for suffix in TABLES:
            train = sorted(folder.glob(f"train*{suffix}"))
            if train:
                tests = (sorted(folder.glob(f"{name}*{suffix}")) for name in TEST_NAMES)
                return train, next((files for files in tests if files), [])
    return None


def table(files: list[Path]) -> Any:
    """The rows of some files, one after the other."""
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading Parquet, CSV and Arrow files") from None
    read_one = parquet.read_table if files[0].suffix == ".parquet" else csv.read_csv
    try:
        found = pa.concat_tables([read_one(str(file)) for file in files])
        if files[0].suffix == ".csv" and any(pa.types.is_binary(field.type) for field in found.schema):
            raise UserError(f"{files[0]} is not readable as CSV; write it again as UTF-8 text.")
        return found
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{files[0]} is not a readable {files[0].suffix} file; write it again.") from error


def _arrow_folder(path: Path, chosen: Columns) -> tuple[Part, Part | None, tuple[str, ...] | None]:
    """A dataset saved to disk: per split a folder with state.json, dataset_info.json and Arrow files."""
    folders: list[Path | None] = [path, None]
    if (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits", [])
        test = next((name for name in TEST_NAMES if name in splits), None)
        if "train" not in splits:
            raise UserError(f"{path} has no split named train; save one.")
        folders = [path / "train", path / test if test else None]
    train, test_part = (from_table(_arrow(folder), folder, chosen) if folder else None for folder in folders)
    assert train is not None
    assert folders[0] is not None
    info = folders[0] / "dataset_info.json"
    feature = (_json(info).get("features") or {}).get(chosen.label) if info.is_file() else None
    names = tuple(feature["names"]) if feature and feature.get("names") else None
    if names and train.y.dtype.kind in "iu":
        train, test_part = (_named(part, names, path) if part else None for part in (train, test_part))
        assert train is not None
    return train, test_part, names


def _named(part: Part, names: tuple[str, ...], path: Path) -> Part:
    y = part.y
    if len(y) and not 0 <= y.min() <= y.max() < len(names):
        raise UserError(f"A label in {path} is not one of its {len(names)} classes; remove such rows.")
    return part._replace(y=np.array(names)[y])


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not a JSON file; save the dataset again.") from error
    return content if isinstance(content, dict) else {}


def _arrow(folder: Path) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading Parquet, CSV and Arrow files") from None
    state = _json(folder / "state.json") if (folder / "state.json").is_file() else {}
    if state.get("_indices_data_files"):
        raise UserError(f"{folder} is stored as a selection of rows; flatten its indices and save it again.")
    listed = [folder / str(entry.get("filename")) for entry in state.get("_data_files") or []]
    files = listed or sorted(folder.glob("*.arrow"))
    if not files:
        raise UserError(f"There is no Arrow file in {folder}; save the dataset again.")
    tables = []
    for file in files:
        try:
            with pa.memory_map(str(file)) as source:
                try:
                    tables.append(pa.ipc.open_stream(source).read_all())
                except pa.ArrowInvalid:
                    source.seek(0)
                    tables.append(pa.ipc.open_file(source).read_all())
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{file} is missing or not a readable Arrow file; save the dataset again."
            ) from error
    return pa.concat_tables(tables)


def from_table(table: Any, file: Path, chosen: Columns) -> Part:
    """Inputs from all columns but the label, the domain and the group, or from those named.

    Labels and groups that need not be there are left out (`chosen.needed`).
    """
    if twice := [name for name in table.column_names if table.column_names.count(name) > 1]:
        raise UserError(f"{file} has two columns named {twice[0]!r}; rename one.")
    if not chosen.needed:
        known = [name if name in table.column_names else None for name in (chosen.label, chosen.group)]
        chosen = chosen._replace(label=known[0], group=known[1])
    others = [chosen.domain, chosen.group]
    named = {
        "label": [chosen.label],
        "columns": chosen.inputs or [],
        "text": chosen.text,
        "domain": others[:1],
        "group": others[1:],
    }
    for option, wanted in ((option, name) for option, names in named.items() for name in names):
        if wanted is not None and wanted not in table.column_names:
            raise UserError(
                f"{file} has no column {wanted!r}; choose with {option}= among: "
                f"{', '.join(table.column_names)}."
            )
    inputs = chosen.inputs
    if inputs is None:
        inputs = [name for name in table.column_names if name not in (chosen.label, *others)]
    inputs = list(dict.fromkeys([*inputs, *chosen.text]))
    y, domains, groups = (
        _plain(table[name], name, file) if name else None for name in (chosen.label, *others)
    )
    if not inputs:
        raise UserError(f"{file} has no column of inputs; add one.")
    values = [
        _text(table[name], name, file, chosen.text_size)
        if name in chosen.text
        else _column(table[name], name, file)
        for name in inputs
    ]
    whole = [v for name, v in zip(inputs, values, strict=True) if name not in chosen.text and _is_whole(v)]
    if whole and len(values) > 1:
        raise UserError(
            f"Choose one column of arrays or pictures in {file}, or several of numbers and text, with columns=."
        )
    if whole:
        return Part(whole[0], y, domains, groups)
    parts = [v if v.ndim > 1 else v[:, None] for v in values]
    return Part(np.concatenate([v.astype(np.float32) for v in parts], axis=1), y, domains, groups)


def _is_whole(values: Any) -> bool:
    """Whether a column is all of an example: an array or a picture."""
    return isinstance(values, Pictures) or values.ndim > 1


def _text(column: Any, name: str, file: Path, size: int) -> np.ndarray:
    texts = _plain(column, name, file).tolist()
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"Column {name!r} of {file} is not text; leave it out of text=.")
    return hashed(texts, size)


def _plain(column: Any, name: str | None, file: Path) -> np.ndarray:
    if column.null_count:
        raise UserError(f"Column {name!r} of {file} has missing values; fill or remove them.")
    return np.array(column.to_pylist())


def _column(column: Any, name: str, file: Path) -> Any:
    """One column as numbers, as arrays of one shape, or as pictures."""
    import pyarrow as pa

    array = column.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if array.null_count:
        raise UserError(f"Column {name!r} of {file} has missing values; fill or remove them.")
    if pa.types.is_struct(array.type) and "bytes" in {field.name for field in array.type}:
        return Pictures([_encoded(cell, file) for cell in array.to_pylist()])
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return Pictures(array.to_pylist())
    shape = [len(array)]
    while (
        pa.types.is_list(array.type)
        or pa.types.is_large_list(array.type)
        or pa.types.is_fixed_size_list(array.type)
    ):
        inner = array.flatten()
        if (
            len(array) == 0
            or len(inner) % len(array)
            or pa.compute.count_distinct(pa.compute.list_value_length(array)).as_py() > 1
        ):
            raise UserError(
                f"The rows of column {name!r} of {file} differ in length; give all the same shape."
            )
        shape.append(len(inner) // len(array))
        array = inner
    if not (
        pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)
    ):
        raise UserError(
            f"Column {name!r} of {file} is not numeric; choose the inputs with columns=, or name it in text= if it is text."
        )
    if array.null_count:
        raise UserError(f"Column {name!r} of {file} has missing values; fill or remove them.")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _encoded(cell: dict[str, Any], file: Path) -> Path | bytes:
    """A picture's bytes, or the file it points to."""
    if cell.get("bytes"):
        return bytes(cell["bytes"])
    return (file if file.is_dir() else file.parent) / str(cell["path"])
