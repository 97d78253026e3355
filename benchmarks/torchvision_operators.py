"""torchvision, which Avalanche imports, expects two operators that its wheel may not bring along: import this before it."""

import torch
from torch import library

for operator in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, operator)
    except AttributeError:
        library.define(
            f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
