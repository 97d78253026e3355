"""Small files in the format of every data set, written by the tests themselves."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from cop2l.streams import DATASETS

FILES, LETTERS, BATCHES = (DATASETS[name].files for name in ("mnist", "emnist-letters", "cifar10"))


def values(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(
    root: Path, folder: str = "MNIST/raw", n: int = 40, n_test: int = 20, compress: bool = True
) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    for name, size in zip(FILES, (n, n, n_test, n_test), strict=True):
        labels = np.arange(size, dtype=np.uint8) % 10
        content = idx(labels if "labels" in name else values(size, 28, 28, seed=size))
        (place / (f"{name}.gz" if compress else name)).write_bytes(
            gzip.compress(content) if compress else content
        )
    return place


def fashion(root: Path) -> Path:
    return mnist(root, "FashionMNIST/raw")


def letters(root: Path) -> Path:
    place = root / "EMNIST/raw"
    place.mkdir(parents=True)
    for name, size in zip(LETTERS, (52, 52, 26, 26), strict=True):
        labels = (1 + np.arange(size) % 26).astype(np.uint8)
        content = idx(labels if "labels" in name else values(size, 28, 28))
        (place / f"{name}.gz").write_bytes(gzip.compress(content))
    return place


def python2_batch(data: np.ndarray, labels: list[int], key: str = "labels") -> bytes:
    """A batch as Python 2 pickled it (protocol 2): byte strings, and numpy's inner module under its old name."""

    def text(content: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(content)) + content

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + number(0)
        + b"\x85"
        + text(b"b")
        + b"\x87R"
    )
    shape = number(data.shape[0]) + number(data.shape[1]) + b"\x86"
    array += b"(" + number(1) + shape + kind + b"\x89" + text(data.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key.encode()) + listed + b"u."


def cifar10(root: Path) -> Path:
    place = root / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for seed, name in enumerate(BATCHES):
        (place / name).write_bytes(python2_batch(values(20, 3072, seed=seed), [i % 10 for i in range(20)]))
    return place


def cifar10_binary(root: Path) -> Path:
    place = root / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    for seed, name in enumerate(BATCHES):
        labels = (np.arange(20, dtype=np.uint8) % 10)[:, None]
        (place / f"{name}.bin").write_bytes(np.hstack([labels, values(20, 3072, seed=seed)]).tobytes())
    return place


def cifar100(root: Path) -> Path:
    place = root / "cifar-100-python"
    place.mkdir(parents=True)
    for name, n in (("train", 200), ("test", 100)):
        labels = [i % 100 for i in range(n)]
        (place / name).write_bytes(python2_batch(values(n, 3072), labels, "fine_labels"))
    return place


def picture(file: Path, width: int, height: int, seed: int, mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(file)


def tinyimagenet(root: Path) -> Path:
    place = root / "tiny-imagenet-200"
    wnids = [f"n{9999 - 7 * i:08d}" for i in range(200)]
    lines = []
    for i, wnid in enumerate(wnids):
        picture(place / "train" / wnid / "images" / f"{wnid}_0.JPEG", 8, 8, i)
        picture(place / "val" / "images" / f"val_{i}.JPEG", 8, 8, i)
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t7\t7\n")
    (place / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (place / "val" / "val_annotations.txt").write_text("".join(lines))
    return place


def imagenette(root: Path, name: str = "imagenette", folder: str = "imagenette2-160") -> Path:
    for i, wnid in enumerate(DATASETS[name].names):
        picture(root / folder / "train" / wnid / "a.JPEG", 40 + i, 30, i)
        picture(root / folder / "train" / wnid / "b.JPEG", 30, 40 + i, i)
        picture(root / folder / "val" / wnid / "c.JPEG", 20, 20, i)
    return root / folder


def imagewoof(root: Path) -> Path:
    return imagenette(root, "imagewoof", "imagewoof2-320")


WRITERS: dict[str, Callable[[Path], Path]] = {
    "mnist": mnist,
    "fashion-mnist": fashion,
    "emnist-letters": letters,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tinyimagenet": tinyimagenet,
    "imagenette": imagenette,
    "imagewoof": imagewoof,
}
