"""The data sets of datasets.toml: finding, reading and preparing them."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams.folders import roots
from cop2l.streams.formats import READERS, wnids
from cop2l.streams.own import hold_out
from cop2l.streams.pictures import Scaled
from cop2l.streams.scenarios import Labelled


@dataclass(frozen=True)
class DataSet:
    """One data set; datasets.toml explains the attributes."""

    name: str
    title: str
    format: str
    classes: int
    tasks: int
    mean: Sequence[float]
    std: Sequence[float]
    folders: Sequence[str]
    urls: Sequence[str]
    megabytes: int
    md5: Mapping[str, str]
    names: Sequence[str] | Mapping[str, str] = ()
    files: Sequence[str] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)

    def find_files(self, folder: Path) -> list[Path] | None:
        """The files of the data set in a folder, plain, .gz or .bin; None if one is missing."""
        class_folders = (f"{part}/{name}/" for part in ("train", "val") for name in self.names)
        files = []
        for name in self.files or class_folders:
            variants = (folder / name, folder / f"{name}.gz", folder / f"{name}.bin")
            exists = Path.is_dir if name.endswith("/") else Path.is_file
            file = next(filter(exists, variants), None)
            if file is None:
                return None
            files.append(file)
        return files

    def locate(self, folder: str | Path | None = None) -> Path | None:
        """The folder of its files: one of `folders` below a data folder, or the data folder itself."""
        candidates = (root / below for root in roots(folder) for below in (*self.folders, ""))
        return next(filter(self.find_files, candidates), None)

    def open(self, folder: str | Path | None = None) -> Labelled:
        """The labelled data as stored: bytes (n, channels, height, width), or `Pictures`."""
        place = self.locate(folder)
        if place is None:
            where = f"in {folder}" if folder is not None else "on this machine"
            raise UserError(
                f"{self.title} was not found {where}; get it with 'cop2l data get {self.name}', "
                "or name its folder with folder= or in the environment variable COP2L_DATA."
            )
        x, y, x_test, y_test = READERS[self.format](place, self.find_files(place) or ())
        for labels in (y, y_test):
            if len(labels) and not 0 <= labels.min() <= labels.max() < self.classes:
                raise UserError(
                    f"{place} holds labels that {self.title} does not have; get the data set again."
                )
        names = self.names.values() if isinstance(self.names, Mapping) else self.names or wnids(place)
        prepare = Scaled(self.mean, self.std)
        return Labelled(self.name, x, y, x_test, y_test, tuple(names), tasks=self.tasks, prepare=prepare)


_TABLES = tomllib.loads((resources.files("cop2l.streams") / "datasets.toml").read_text(encoding="utf-8"))
DATASETS = {
    name: DataSet(name, **{"classes": len(table.get("names", ())), **table})
    for name, table in _TABLES.items()
}


def digits() -> Labelled:
    """The 1797 handwritten digits of scikit-learn, 8 x 8; a fixed random fifth is the test part."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing_extra("scikit-learn", "data", "The data set digits") from None
    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
    train, test = hold_out(len(y), 0.2, seed=0)
    names = tuple("0123456789")
    return Labelled("digits", x[train], y[train], x[test], y[test], names, tasks=5, prepare=Scaled(top=16))
