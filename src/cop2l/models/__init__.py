"""Classifiers (mlp, cnn, heads) and frozen backbones."""

from cop2l.kernel.models import (
    CNN,
    MLP,
    MODELS,
    Classifier,
    Linear,
    MLPHead,
    MultiHead,
    RandomFeatures,
    build,
    rebuild,
)
from cop2l.models.packed import Unpacked, pack

__all__ = [
    "CNN", "MLP", "MODELS", "Classifier", "Linear", "MLPHead", "MultiHead", "RandomFeatures", "Unpacked",
    "build", "pack", "rebuild",
]  # fmt: skip
