"""Frozen backbones: what each is, what it was trained on, and where its weights come from."""

from dataclasses import dataclass

IMAGENET_1K = ("ImageNet-1k",)
LVD_142M = (
    "LVD-142M", "ImageNet-22k", "ImageNet-1k", "Google Landmarks v2", "Caltech-101", "CUB-200-2011", "DTD",
    "FGVC-Aircraft", "Flowers-102", "Food-101", "Oxford-IIIT Pet", "Stanford Cars", "SUN397",
)  # fmt: skip
"""DINOv2's training set, and the data sets that it was curated from."""


@dataclass(frozen=True)
class Backbone:
    """A frozen network from pictures to features."""

    name: str
    title: str
    width: int
    pretrained_on: tuple[str, ...]


BACKBONES = {
    backbone.name: backbone
    for backbone in (
        Backbone("dinov2-vits14", "DINOv2 ViT-S/14", 384, LVD_142M),
        Backbone("efficientnet-lite0", "EfficientNet-Lite0", 1280, IMAGENET_1K),
        Backbone("dino-vits16", "DINO ViT-S/16", 384, IMAGENET_1K),
        Backbone("dino-resnet50", "DINO ResNet50", 2048, IMAGENET_1K),
        Backbone("resnet18", "ResNet18", 512, IMAGENET_1K),
    )
}
