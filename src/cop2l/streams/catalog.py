"""The data sets by name: how each is found in a folder, read and prepared."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cop2l.errors import UserError, missing_extra, unknown
from cop2l.streams import mnist
from cop2l.streams.pictures import Scaled
from cop2l.streams.places import roots
from cop2l.streams.scenarios import Labelled

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class DataSet:
    """One data set: its label set, its usual cut, its files and how they are read."""

    name: str
    title: str
    tasks: int
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folders: tuple[str, ...]
    """Where its files are below a data folder; the data folder itself is the last resort."""
    find: Callable[[Path], tuple[Path, ...] | None]
    """The files in a folder, or None if they are not all there."""
    read: Callable[[tuple[Path, ...]], Arrays]

    def locate(self, folder: str | Path | None = None) -> tuple[Path, ...] | None:
        """The files, wherever they are; None if nowhere."""
        for root in roots(folder):
            for place in (*(root / below for below in self.folders), root):
                files = self.find(place)
                if files:
                    return files
        return None

    def open(self, folder: str | Path | None = None) -> Labelled:
        """The labelled data, read from a local folder."""
        files = self.locate(folder)
        if files is None:
            where = f"in {folder}" if folder is not None else "on this machine"
            raise UserError(
                f"{self.title} was not found {where}; get it with 'cop2l data get {self.name}', "
                "or name a folder that holds it by the option folder or the environment variable COP2L_DATA."
            )
        x, y, x_test, y_test = self.read(files)
        return Labelled(
            self.name, x, y, x_test, y_test, self.names, tasks=self.tasks, prepare=Scaled(self.mean, self.std)
        )


def _idx_files(folder: Path) -> tuple[Path, ...] | None:
    """The four files of the MNIST family, gzip or plain."""
    found = []
    for name in mnist.FILES:
        here = [file for file in (folder / f"{name}.gz", folder / name) if file.is_file()]
        if not here:
            return None
        found.append(here[0])
    return tuple(found)


DIGITS = tuple("0123456789")
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
DATASETS = {
    data_set.name: data_set
    for data_set in (
        DataSet(
            "mnist", "MNIST", 5, DIGITS, (0.1307,), (0.3081,), ("MNIST/raw", "mnist"), _idx_files, mnist.read
        ),
        DataSet(
            "fashion-mnist",
            "Fashion-MNIST",
            5,
            FASHION,
            (0.2860,),
            (0.3530,),
            ("FashionMNIST/raw", "fashion-mnist"),
            _idx_files,
            mnist.read,
        ),
    )
}


def data_set(name: str) -> DataSet:
    """The data set of that name."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def digits() -> Labelled:
    """The 1797 handwritten digits of scikit-learn, 8 x 8; a fixed random fifth is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing_extra("scikit-learn", "data", "The data set digits") from None
    from cop2l.streams.own import hold_out

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    train, test = hold_out(len(y), 0.2, seed=0)
    return Labelled(
        "digits",
        x[train],
        y[train],
        x[test],
        y[test],
        DIGITS,
        tasks=5,
        prepare=Scaled((0.5,), (0.5,), top=16),
    )
