"""Models: mlp, cnn, heads, and frozen backbones."""

from cop2l.models.classifiers import CNN, MLP, Classifier, Linear, MLPHead, MultiHead, RandomFeatures
from cop2l.models.packed import Unpacked, pack
from cop2l.models.registry import MODELS, build, rebuild

__all__ = [
    "CNN", "MLP", "MODELS", "Classifier", "Linear", "MLPHead", "MultiHead", "RandomFeatures", "Unpacked",
    "build", "pack", "rebuild",
]  # fmt: skip
