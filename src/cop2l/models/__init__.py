"""Classifiers (mlp, cnn, heads) and frozen backbones."""

from cop2l.kernel.models import MODELS, Classifier, build, rebuild
from cop2l.models.packed import Unpacked, pack

__all__ = ["MODELS", "Classifier", "Unpacked", "build", "pack", "rebuild"]
