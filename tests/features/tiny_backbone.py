"""A tiny backbone with random weights and some pictures; run as a script it extracts, and may kill itself."""

import os
import signal
import sys
from functools import partial

import numpy as np
import torch
from safetensors.torch import save_file

from cop2l.features import extract, extraction
from cop2l.models.backbones import Backbone
from cop2l.models.vit import ViT
from cop2l.randomness import private_randomness
from cop2l.streams import Labelled

TINY = Backbone(
    "tiny",
    16,
    ("ImageNet-1k",),
    "none",
    partial(ViT, 8, 3, width=16, depth=1, heads=2),
    patch=8,
    smallest=8,
)


def weights(file, seed=0):
    """A file of random weights."""
    with private_randomness(torch.device("cpu"), seed, "tiny backbone"):
        network = TINY.make()
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    save_file(network.state_dict(), file)
    return file


def pictures(n=50, n_test=20, name="cifar10", channels=3, seed=0):
    """Labelled pictures, 10 classes, in mixed order."""
    draw = np.random.default_rng(seed)
    x, x_test = (draw.integers(0, 256, (rows, channels, 12, 12), np.uint8) for rows in (n, n_test))
    y, y_test = (draw.permutation(np.arange(rows) % 10) for rows in (n, n_test))
    return Labelled(name, x, y, x_test, y_test, tuple("abcdefghij"), tasks=5)


def small_steps():
    """Shards of 8 pictures in batches of 4."""
    extraction.SHARD, extraction.BATCH = 8, {"cpu": 4}


if __name__ == "__main__":
    file, stop = sys.argv[1], int(sys.argv[2])

    def progress(state):
        """Die without a chance to clean up, in the middle of a shard."""
        if state["part"] == "train" and state["done"] >= stop:
            os.kill(os.getpid(), signal.SIGKILL)

    small_steps()
    extract(pictures(), TINY, size=24, weights=file, progress=progress)
