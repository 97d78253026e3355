"""Features that were computed elsewhere become a cache entry."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from cop2l.errors import UserError
from cop2l.features.store import CHUNK, PARTS, Entry, Writer, content_hash, lookup, names
from cop2l.files import file_digest
from cop2l.models.backbones import BACKBONES
from cop2l.models.modules import named_backbone
from cop2l.plugins import installed
from cop2l.streams.files import stored_arrays

ARRAYS = tuple(f"{letter}_{part}" for part in PARTS for letter in "xy")


def import_features(
    file: str | Path,
    *,
    dataset: str | None = None,
    backbone: str | None = None,
    size: int | None = None,
    pretrained_on: str | Iterable[str] | None = None,
) -> Entry:
    """A cache entry from an `.npz` file with x_train, y_train, x_test, y_test, and scale if x are integers.

    What is not given is read off the file's name, `<dataset>-<backbone>-<px>.npz`.
    """
    path = Path(file)
    dataset, backbone, size = names_from_file(path, dataset, backbone, size)
    arrays = _read(path)
    spec = {
        "dataset": dataset,
        "backbone": backbone,
        "size": size,
        "imported": file_digest(path),
    }
    if (entry := lookup(content_hash(spec))) is not None:
        return entry.trained_on(pretrained_on)
    known = named_backbone(backbone) if backbone in (*BACKBONES, *installed("backbones")) else None
    saw = pretrained_on if pretrained_on is not None else known.pretrained_on if known else ()
    writer = Writer(spec)
    try:
        for part in PARTS:
            x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
            writer.write(part, y, _expanded(x, arrays.get("scale")))
        classes = int(arrays["y_train"].max()) + 1
        return writer.finish(pretrained_on=names(saw), classes=classes, file=path.name)
    except BaseException:
        writer.discard()
        raise


def names_from_file(
    path: Path, dataset: str | None = None, backbone: str | None = None, size: int | None = None
) -> tuple[str, str, int]:
    """Data set, backbone and size: what is given, else what the file's name says.

    >>> names_from_file(Path("fashion-mnist-dinov2-vits14-70.npz"))
    ('fashion-mnist', 'dinov2-vits14', 70)
    """
    match = re.fullmatch(r"(?P<rest>.+)-(?P<size>\d+)", path.stem)
    rest = match["rest"] if match else path.stem
    if match:
        size = size or int(match["size"])
    for name in (
        (backbone,) if backbone else sorted((*BACKBONES, *installed("backbones")), key=len, reverse=True)
    ):
        if rest.endswith(f"-{name}"):
            backbone, dataset = name, dataset or rest.removesuffix(f"-{name}")
    if dataset and not backbone and rest.startswith(f"{dataset}-"):
        backbone = rest.removeprefix(f"{dataset}-")
    missing = [o for o, v in (("--dataset", dataset), ("--backbone", backbone), ("--size", size)) if not v]
    if missing or dataset is None or backbone is None or size is None:
        raise UserError(
            f"The name {path.name!r} does not say what the file holds; add {' and '.join(missing)}, "
            "or call it <dataset>-<backbone>-<px>.npz."
        )
    return dataset, backbone, size


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"There is no file {path}; give an .npz file of features.")
    arrays = stored_arrays(path)
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise UserError(f"{path} lacks the array {missing[0]}; it must hold {', '.join(ARRAYS)}.")
    for part in PARTS:
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim != 2 or y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
            raise UserError(
                f"{path}: x_{part} must be rows of features and y_{part} one whole number per row."
            )
    if arrays["x_train"].shape[1] != arrays["x_test"].shape[1]:
        raise UserError(f"{path}: x_train and x_test have different widths; give both the same features.")
    if np.issubdtype(arrays["x_train"].dtype, np.integer) and "scale" not in arrays:
        raise UserError(f"{path} holds integer features but no scale; add the array scale.")
    seen = np.unique(arrays["y_train"])
    if (
        not np.array_equal(seen, np.arange(len(seen)))
        or not np.isin(arrays["y_test"], seen).all()
        or not len(seen)
    ):
        raise UserError(f"{path}: y_train must hold the labels 0..C-1 without gaps, and y_test no others.")
    return arrays


def _expanded(x: np.ndarray, scale: np.ndarray | None) -> Iterator[np.ndarray]:
    for start in range(0, len(x), CHUNK):
        rows = x[start : start + CHUNK].astype(np.float32)
        yield rows if scale is None else rows * scale.astype(np.float32)
