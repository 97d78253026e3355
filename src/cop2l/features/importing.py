"""Importing features that were computed elsewhere."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cop2l.errors import UserError
from cop2l.features.store import CHUNK, PARTS, Entry, Writer, content_hash, data_names, lookup
from cop2l.files import file_digest
from cop2l.models.backbones import BACKBONES
from cop2l.models.modules import named_backbone
from cop2l.plugins import installed_names
from cop2l.streams.encoding import Encoder, Rows
from cop2l.streams.files import read_data


def import_features(
    file: str | Path,
    *,
    dataset: str | None = None,
    backbone: str | None = None,
    size: int | None = None,
    pretrained_on: str | Iterable[str] | None = None,
) -> Entry:
    """The cache entry of a file of features, such as an `.npz` with x_train, y_train, x_test, y_test.

    Data set, backbone and size that are left out are read from the file's name, `<dataset>-<backbone>-<px>.npz`.
    """
    path = Path(file)
    dataset, backbone, size = names_from_file(path, dataset, backbone, size)
    data = read_data(path)
    encode = Encoder.fit(str(path), [data.x, data.x_test], None) if isinstance(data.x, Rows) else np.asarray
    x_train, x_test = encode(data.x), encode(data.x_test)
    if x_train.ndim != 2:
        raise UserError(
            f"{path} holds arrays of shape {x_train.shape[1:]}; give one row of features per example."
        )
    spec = {
        "dataset": dataset,
        "backbone": backbone,
        "size": size,
        "imported": file_digest(path),
    }
    if (entry := lookup(content_hash(spec))) is not None:
        return entry.trained_on(pretrained_on)
    if pretrained_on is None:
        pretrained_on = named_backbone(backbone).pretrained_on if backbone in _backbone_names() else ()
    writer = Writer(spec)
    try:
        for part, x, y in zip(PARTS, (x_train, x_test), (data.y, data.y_test), strict=True):
            writer.write(part, y, (x[start : start + CHUNK] for start in range(0, len(x), CHUNK)))
        numbered = data.names == tuple(map(str, range(data.classes)))
        names = {} if numbered else {"class_names": list(data.names)}
        return writer.finish(
            pretrained_on=data_names(pretrained_on), classes=data.classes, file=path.name, **names
        )
    except BaseException:
        shutil.rmtree(writer.folder, ignore_errors=True)
        raise


def names_from_file(
    path: Path, dataset: str | None = None, backbone: str | None = None, size: int | None = None
) -> tuple[str, str, int]:
    """Data set, backbone and size; what is None is read from the file's name.

    >>> names_from_file(Path("fashion-mnist-dinov2-vits14-70.npz"))
    ('fashion-mnist', 'dinov2-vits14', 70)
    """
    names, _, digits = path.stem.rpartition("-")
    if not digits.isdecimal():
        names, digits = path.stem, "0"
    size = size or int(digits)
    known_names = [backbone] if backbone else sorted(_backbone_names(), key=len, reverse=True)
    if ending := next((name for name in known_names if names.endswith(f"-{name}")), None):
        backbone, dataset = ending, dataset or names.removesuffix(f"-{ending}")
    if dataset and not backbone and names.startswith(f"{dataset}-"):
        backbone = names.removeprefix(f"{dataset}-")
    if not (dataset and backbone and size):
        parts = {"the data set": dataset, "--backbone": backbone, "--size": size}
        raise UserError(
            f"The name {path.name!r} does not say what the file holds; add "
            f"{' and '.join(option for option, value in parts.items() if not value)}, "
            "or call it <dataset>-<backbone>-<px>.npz."
        )
    return dataset, backbone, size


def _backbone_names() -> tuple[str, ...]:
    return (*BACKBONES, *installed_names("backbones"))
