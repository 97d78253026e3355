"""Extraction: once, in shards, resumed to the same bytes, under a hash of everything it depends on."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_backbone
import torch
import torch.nn.functional as F
from PIL import Image
from tiny_backbone import TINY, pictures, weights

from cop2l.errors import UserError
from cop2l.features import entries, extract, extraction, find_entry, load_stream
from cop2l.features.store import root
from cop2l.files import Lock


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(extraction, "SHARD", 8)
    monkeypatch.setattr(extraction, "BATCH", {"cpu": 4})


@pytest.fixture
def file(tmp_path):
    return weights(tmp_path / "tiny.safetensors")


def content(entry):
    return {path.name: path.read_bytes() for path in sorted(entry.folder.glob("*.npy"))}


def test_features_are_those_of_the_backbone(file):
    data = pictures()
    entry = extract(data, TINY, size=24, weights=file)
    x, y = entry.part("train")
    rows = np.argsort(data.y, kind="stable")
    assert isinstance(x, np.memmap)
    assert (x.shape, x.dtype) == ((50, 16), np.float32)
    assert (np.diff(y) >= 0).all()
    assert (data.y[rows] == y).all()
    picture = torch.from_numpy(data.x[rows[7]][None]).float()
    picture = F.interpolate(picture, size=(24, 24), mode="bicubic", antialias=True).clamp(0, 255) / 255
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in (TINY.mean, TINY.std))
    expected = TINY.load(file)((picture - mean) / std)[0]
    assert x[7] == pytest.approx(expected.numpy(), abs=1e-4)


def test_a_second_call_finds_the_entry(file):
    first = extract(pictures(), TINY, size=24, weights=file)

    def never(state):
        raise AssertionError("computed again")

    assert extract(pictures(), TINY, size=24, weights=file, progress=never).folder == first.folder
    assert [entry.key for entry in entries()] == [first.key]
    assert not [path for path in root().iterdir() if path.name.startswith(".")]


def test_killed_half_way_and_resumed_gives_the_same_bytes(file, tmp_path, monkeypatch):
    expected = content(extract(pictures(), TINY, size=24, weights=file))
    monkeypatch.setenv("COP2L_HOME", str(tmp_path / "other"))
    command = [sys.executable, tiny_backbone.__file__, str(file), "28"]
    killed = subprocess.run(command, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not list(entries())
    states = []
    resumed = extract(
        pictures(), TINY, size=24, weights=file, progress=lambda state: states.append(dict(state))
    )
    assert content(resumed) == expected
    assert states[0]["done"] == 28, "the three finished shards were computed again"
    assert states[-1] == {"part": "test", "done": 20, "total": 20, "rate": states[-1]["rate"]}
    assert sorted(path.name for path in resumed.folder.iterdir()) == [
        "entry.json", "x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "damage", [lambda b: b[:100], lambda b: b"", lambda b: b[:-4], lambda b: b[:-1] + bytes([b[-1] ^ 1])]
)
def test_a_damaged_shard_is_computed_again(file, damage):
    expected = content(extract(pictures(), TINY, size=24, weights=file))
    (entry,) = entries()

    class StopError(Exception):
        pass

    def stop(state):
        if state["done"] > 16:
            raise StopError

    (entry.folder / "entry.json").unlink()
    with pytest.raises(StopError):
        extract(pictures(), TINY, size=24, weights=file, progress=stop)
    (shard,) = root().glob(".*/train/000000008.safetensors")
    shard.write_bytes(damage(shard.read_bytes()))
    assert content(extract(pictures(), TINY, size=24, weights=file)) == expected


def test_the_hash_covers_everything(file, tmp_path):
    data = pictures()
    changed = replace(data, x=data.x.copy())
    changed.x[3, 0, 0, 0] ^= 1
    relabelled = replace(data, y=np.roll(data.y, 1))
    variants = [
        {},
        {"size": 16},
        {"limit": 30},
        {"weights": weights(tmp_path / "other.safetensors", seed=1)},
        {"backbone": replace(TINY, mean=(0.5, 0.5, 0.5))},
        {"data": changed},
        {"data": relabelled},
    ]
    keys = {
        extract(**({"data": data, "backbone": TINY, "size": 24, "weights": file} | variant)).key
        for variant in variants
    }
    assert len(keys) == len(variants)


def test_a_limit_spreads_over_the_data(file):
    entry = extract(pictures(), TINY, size=24, weights=file, limit=10)
    assert entry.name == "cifar10:10@tiny-24"
    unlimited = extract(pictures(), TINY, size=24, weights=file)
    at = np.flatnonzero(np.argsort(pictures().y, kind="stable") % 5 == 0)
    assert entry.part("train")[0] == pytest.approx(unlimited.part("train")[0][at], abs=1e-4)
    assert find_entry("cifar10@tiny-24").key == unlimited.key


def test_grey_pictures(file):
    grey = pictures(channels=1)
    colour = replace(grey, x=np.repeat(grey.x, 3, 1), x_test=np.repeat(grey.x_test, 3, 1))
    one, three = (extract(data, TINY, size=24, weights=file) for data in (grey, colour))
    assert (one.part("train")[0] == three.part("train")[0]).all()


def test_a_folder_of_pictures_of_many_sizes(file, tmp_path):
    draw = np.random.default_rng(0)
    for number in range(12):
        for part in ("train", "test"):
            place = tmp_path / "zoo" / part / f"animal{number % 2}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            size = (10 + number, 20 - number, 3)
            Image.fromarray(draw.integers(0, 256, size, np.uint8)).save(place)
    entry = extract(tmp_path / "zoo", TINY, size=16, weights=file)
    assert (entry.name, entry.about["class_names"]) == ("zoo@tiny-16", ["animal0", "animal1"])
    stream = load_stream("zoo@tiny-16", tasks=2)
    assert [len(task.y) for task in stream] == [6, 6]
    assert extract(tmp_path / "zoo", TINY, size=16, weights=file).key == entry.key


def test_two_processes_do_not_meet(file):
    extract(pictures(), TINY, size=24, weights=file)
    (entry,) = entries()
    (entry.folder / "entry.json").unlink()
    with (
        Lock(root().parent / "locks" / f"{entry.folder.name}.lock", "busy"),
        pytest.raises(UserError, match=f"Another process .process {os.getpid()} on"),
    ):
        extract(pictures(), TINY, size=24, weights=file)
    extract(pictures(), TINY, size=24, weights=file)


def test_features_that_are_not_finite_are_refused(file, tmp_path):
    from safetensors.torch import load_file, save_file

    state = load_file(file)
    state["norm.bias"][:] = torch.nan
    save_file(state, tmp_path / "broken.safetensors")
    with pytest.raises(UserError, match="not finite; correct its weights"):
        extract(pictures(), TINY, size=24, weights=tmp_path / "broken.safetensors")
    assert not list(entries())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 20}, "20 px; choose a size of at least 8 px that is a multiple of 8"),
        ({"limit": 0}, "at least 1 picture"),
        ({"device": "cuda:99"}, "does not work on this machine"),
        ({"device": "toaster"}, "does not work on this machine"),
        ({"data": "cifar11"}, "did you mean 'cifar10'"),
        ({"backbone": "dinov2"}, "did you mean 'dinov2-vits14'"),
        ({"weights": Path("nowhere.pth")}, "There is no weights file"),
    ],
)
def test_bad_options_are_one_sentence(options, message, file):
    with pytest.raises(UserError, match=message) as caught:
        extract(**({"data": pictures(), "backbone": TINY, "size": 24, "weights": file} | options))
    assert "\n" not in str(caught.value)
    assert not list(entries())


def test_data_that_are_no_pictures(file):
    data = pictures()
    with pytest.raises(UserError, match="does not hold pictures"):
        extract(replace(data, x=data.x.reshape(50, -1)), TINY, size=24, weights=file)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_features(file, tmp_path, monkeypatch):
    on_cpu = extract(pictures(), TINY, size=24, weights=file, device="cpu").part("train")[0]
    monkeypatch.setenv("COP2L_HOME", str(tmp_path / "gpu"))
    entry = extract(pictures(), TINY, size=24, weights=file, device="cuda")
    on_gpu = entry.part("train")[0]
    cosine = (on_cpu * on_gpu).sum(1) / np.linalg.norm(on_cpu, axis=1) / np.linalg.norm(on_gpu, axis=1)
    assert entry.about["device"] == "cuda"
    assert cosine.min() > 0.9999
