"""Small runs of one's own data, and how a forger changes a certificate and mends every hash."""

import json
import shutil
from pathlib import Path

import numpy as np

import cop2l
from cop2l.experiments import grid
from cop2l.experiments.run import run
from cop2l.files import file_digest
from cop2l.kernel.form import TEXT_FILE, content_digest

SMALL = {
    "method": "cop2l",
    "tasks": 2,
    "model": "mlp",
    "architecture": {"hidden": 16},
    "memory": 30,
    "epochs": 5,
    "lr": 0.3,
}


def write_data(path, n=240, classes=4, seed=0):
    """Clouds of numbers, no two rows alike."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = (rng.normal(size=(n, 6)) + 3 * np.eye(6)[y]).astype(np.float32)
    np.savez(path, x=x, y=y, x_test=x[:40], y_test=y[:40])
    return path


def made(folder, source, **changes):
    """A run directory."""
    run(grid.single_run({"stream": str(source), **SMALL, **changes}), folder)
    return folder


def verify(path, data=None, split=None, **options):
    """The verdict of an auditor who knows into how many tasks the data was split."""
    data = data if data is None or isinstance(data, dict) else str(data)
    return cop2l.verify(path, data, split={"tasks": 2} | (split or {}), **options)


def copied(folder, to):
    shutil.copytree(folder, to)
    return Path(to)


def last_certificate(run_folder):
    return max(
        (run_folder / "certificates").iterdir(), key=lambda path: int(path.name.removeprefix("after-"))
    )


def forged(folder, change):
    """Change the text of a certificate, and mend the hashes of its files and its digest."""
    file = folder / TEXT_FILE
    content = json.loads(file.read_text())
    change(content)
    content["files"] = {name: file_digest(folder / name) for name in content["files"]}
    content["digest"] = content_digest(content)
    file.write_text(json.dumps(content))
    return folder


def sentences(verdict):
    return "\n".join([*verdict.unverified, *verdict.invalid])
