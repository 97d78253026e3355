"""The data sets by name: how each is found in a folder, read and prepared."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError, missing_extra, unknown
from cop2l.streams import cifar, idx, label_sets
from cop2l.streams.folders import roots
from cop2l.streams.own import hold_out
from cop2l.streams.pictures import Pictures, Scaled, from_folders
from cop2l.streams.scenarios import Labelled

Files = tuple[Path, ...]
GREY = ((0.5,), (0.5,))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SIDE = 64
"""Pictures in files of many sizes are resized to this, as published, unless told otherwise."""


@dataclass(frozen=True)
class DataSet:
    """One data set: its label set, its usual cut, its files and how they are read."""

    name: str
    title: str
    names: tuple[str, ...]
    """The label set; empty: it is in the data set's own list of classes (TinyImageNet)."""
    classes: int
    tasks: int
    scale: tuple[tuple[float, ...], tuple[float, ...]]
    """Mean and deviation of the channels, as usually published: never computed from the data here."""
    folders: tuple[str, ...]
    """Where its files are below a data folder, the usual one first; the data folder itself comes last."""
    find: Callable[[Path], Files | None]
    """The files in a folder, or None if they are not all there."""
    read: Callable[[Files], tuple[Any, np.ndarray, Any, np.ndarray]]

    def locate(self, folder: str | Path | None = None) -> Files | None:
        """The files, wherever they are; None if nowhere."""
        for root in roots(folder):
            for candidate in (*(root / below for below in self.folders), root):
                files = self.find(candidate)
                if files:
                    return files
        return None

    def open(self, folder: str | Path | None = None) -> Labelled:
        """The labelled data as it is stored: bytes (n, channels, height, width), or pictures in files."""
        files = self.locate(folder)
        if files is None:
            where = f"in {folder}" if folder is not None else "on this machine"
            raise UserError(
                f"{self.title} was not found {where}; get it with 'cop2l data get {self.name}', "
                "or name a folder that holds it by the option folder or the environment variable COP2L_DATA."
            )
        x, y, x_test, y_test = self.read(files)
        for labels in (y, y_test):
            if len(labels) and not 0 <= labels.min() <= labels.max() < self.classes:
                raise UserError(
                    f"{files[0].parent} holds labels that {self.title} does not have; get it again."
                )
        names = self.names or _wnids(files[0])
        return Labelled(self.name, x, y, x_test, y_test, names, tasks=self.tasks, prepare=Scaled(*self.scale))


def decoded(data: Labelled, size: int | None, usual: int | None = None) -> Labelled:
    """The data with its pictures decoded, at a size if one is given."""
    if not isinstance(data.x, Pictures):
        if size is not None:
            raise UserError(f"{data.name} has a size of its own; leave out size={size}.")
        return data
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UserError(f"Give the size of the pictures in pixels, not {size!r}.")
    side = usual if size is None else size
    # The test part may begin with a grey picture among coloured ones: the training part decides for both.
    x, x_test = data.x.array(side), Pictures(data.x_test.sources, data.x.mode).array(side)
    if x.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Training and test pictures of {data.name} differ in size; give size=, such as size=64."
        )
    return replace(data, x=x, x_test=x_test, description=data.description | {"size": x.shape[2]})


def _wnids(folder: Path) -> tuple[str, ...]:
    return tuple(sorted((folder / "wnids.txt").read_text().split()))


def _tiny_folder(folder: Path) -> Files | None:
    inside = (folder / "wnids.txt").is_file() and (folder / "train").is_dir() and (folder / "val").is_dir()
    return (folder,) if inside else None


def _tiny(files: Files) -> tuple[Pictures, np.ndarray, Pictures, np.ndarray]:
    """TinyImageNet: the validation part is the test part (the test part has no labels)."""
    (folder,) = files
    names = _wnids(folder)
    annotations = folder / "val" / "val_annotations.txt"
    if len(names) != 200 or not annotations.is_file():
        raise UserError(
            f"{folder} is not the whole TinyImageNet (wnids.txt, val_annotations.txt); get it again."
        )
    lines = [line.split("\t") for line in annotations.read_text().splitlines() if line]
    number = {name: label for label, name in enumerate(names)}
    try:
        y_test = np.array([number[line[1]] for line in lines], np.int64)
    except (KeyError, IndexError) as error:
        raise UserError(f"{annotations} does not fit wnids.txt; get both again.") from error
    tests = [folder / "val" / "images" / line[0] for line in lines]
    absent = next((file for file in tests if not file.is_file()), None)
    if absent:
        raise UserError(f"There is no file {absent}; get TinyImageNet again.")
    return *from_folders(folder / "train", names, "images"), Pictures(tests), y_test


def _wnid_folders(names: dict[str, str], folder: Path) -> Files | None:
    inside = all((folder / part / name).is_dir() for part in ("train", "val") for name in names)
    return (folder,) if inside else None


def _wnid_pictures(names: dict[str, str], files: Files) -> tuple[Pictures, np.ndarray, Pictures, np.ndarray]:
    (folder,) = files
    return *from_folders(folder / "train", tuple(names)), *from_folders(folder / "val", tuple(names))


def _mnist(
    name: str, title: str, names: tuple[str, ...], scale: tuple[float, float], folders: tuple[str, ...]
) -> DataSet:
    find = partial(idx.find, names=idx.FILES)
    return DataSet(name, title, names, 10, 5, ((scale[0],), (scale[1],)), folders, find, idx.read)


def _imagenet_part(name: str, title: str, names: dict[str, str]) -> DataSet:
    folders = (f"{name}2-320", f"{name}2-160", f"{name}2")
    find, read = partial(_wnid_folders, names), partial(_wnid_pictures, names)
    return DataSet(name, title, tuple(names.values()), 10, 5, IMAGENET, folders, find, read)


FAMILY_SCALE = (0.1307, 0.3081)
"""Mean and deviation for the whole MNIST family: constants, so that no sample decides its own scaling."""

DATASETS = {
    data.name: data
    for data in (
        _mnist("mnist", "MNIST", label_sets.DIGITS, FAMILY_SCALE, ("MNIST/raw", "mnist")),
        _mnist(
            "fashion-mnist",
            "Fashion-MNIST",
            label_sets.FASHION,
            FAMILY_SCALE,
            ("FashionMNIST/raw", "fashion-mnist"),
        ),
        DataSet(
            name="emnist-letters",
            title="EMNIST letters",
            names=label_sets.LETTERS,
            classes=26,
            tasks=13,
            scale=((FAMILY_SCALE[0],), (FAMILY_SCALE[1],)),
            folders=("EMNIST/raw", "EMNIST/raw/gzip", "emnist"),
            find=partial(idx.find, names=idx.LETTERS),
            read=idx.read_letters,
        ),
        DataSet(
            name="cifar10",
            title="CIFAR-10",
            names=label_sets.CIFAR10,
            classes=10,
            tasks=5,
            scale=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            folders=("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10"),
            find=cifar.find10,
            read=cifar.read10,
        ),
        DataSet(
            name="cifar100",
            title="CIFAR-100",
            names=label_sets.CIFAR100,
            classes=100,
            tasks=10,
            scale=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
            folders=("cifar-100-python", "cifar-100-binary", "cifar100"),
            find=cifar.find100,
            read=cifar.read100,
        ),
        DataSet(
            name="tinyimagenet",
            title="TinyImageNet-200",
            names=(),
            classes=200,
            tasks=40,
            scale=IMAGENET,
            folders=("tiny-imagenet-200",),
            find=_tiny_folder,
            read=_tiny,
        ),
        _imagenet_part("imagenette", "Imagenette", label_sets.IMAGENETTE),
        _imagenet_part("imagewoof", "Imagewoof", label_sets.IMAGEWOOF),
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
    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
    train, test = hold_out(len(y), 0.2, seed=0)
    names = label_sets.DIGITS
    prepare = Scaled(*GREY, top=16)
    return Labelled("digits", x[train], y[train], x[test], y[test], names, tasks=5, prepare=prepare)
