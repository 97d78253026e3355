"""torchvision, which Avalanche and CapyMOA import, expects two operators that its wheel may lack: import this before it."""

import torch
from torch import library

for operator in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, operator)
    except AttributeError:
        library.define(
            f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
