"""EfficientNet-Lite0: inverted residuals with ReLU6, without squeeze-and-excitation."""

import torch.nn.functional as F
from torch import Tensor, nn

# kernel, stride, expansion, channels, repeats
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class Convolution(nn.Conv2d):
    """Output size = input size / stride, rounded up; an odd pixel of padding goes to the end."""

    def __init__(self, before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(before, after, size, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pad, then convolve."""
        (size, _), (stride, _) = self.kernel_size, self.stride
        margins = []
        for length in (x.shape[-1], x.shape[-2]):
            total = max((-(-length // stride) - 1) * stride + size - length, 0)
            margins += [total // 2, total - total // 2]
        return super().forward(F.pad(x, margins))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Inverted(nn.Module):
    """Widen, convolve channel by channel, narrow."""

    def __init__(self, before: int, after: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.adds = stride == 1 and before == after
        self.widens = expansion > 1
        if self.widens:
            self.expand_conv = Convolution(before, wide, 1)
            self.bn0 = _norm(wide)
        self.depthwise_conv = Convolution(wide, wide, size, stride, groups=wide)
        self.bn1 = _norm(wide)
        self.project_conv = Convolution(wide, after, 1)
        self.bn2 = _norm(after)

    def forward(self, x: Tensor) -> Tensor:
        """One block; the input is added where the shape allows it."""
        y = F.relu6(self.bn0(self.expand_conv(x))) if self.widens else x
        y = F.relu6(self.bn1(self.depthwise_conv(y)))
        out: Tensor = self.bn2(self.project_conv(y))
        return x + out if self.adds else out


class EfficientNetLite0(nn.Module):
    """Pictures to the mean of the last 1280 feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = Convolution(3, 32, 3, 2)
        self.bn0 = _norm(32)
        blocks, before = [], 32
        for size, stride, expansion, channels, repeats in STAGES:
            for repeat in range(repeats):
                blocks.append(Inverted(before, channels, size, 1 if repeat else stride, expansion))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = Convolution(320, 1280, 1)
        self.bn1 = _norm(1280)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, H, W) to (batch, 1280)."""
        x = self.blocks(F.relu6(self.bn0(self.conv_stem(x))))
        return F.relu6(self.bn1(self.conv_head(x))).mean((2, 3))
