"""ResNet18 and ResNet50, with the parameter names of the published state dicts."""

from collections.abc import Callable

from torch import Tensor, nn

Convolutions = tuple[tuple[int, int, int, int], ...]
"""For each convolution: input channels, output channels, kernel size, stride."""


def basic(before: int, width: int, stride: int) -> Convolutions:
    """Two 3 x 3 convolutions."""
    return (before, width, 3, stride), (width, width, 3, 1)


def bottleneck(before: int, width: int, stride: int) -> Convolutions:
    """1 x 1 (with the stride, as in Keras), 3 x 3, 1 x 1."""
    return (before, width, 1, stride), (width, width, 3, 1), (width, 4 * width, 1, 1)


def _convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


class Residual(nn.Module):
    """A branch of convolutions, added to its input; a projection adapts the input where the shape changes."""

    def __init__(self, convolutions: Convolutions, stride: int, eps: float) -> None:
        super().__init__()
        before, after = convolutions[0][0], convolutions[-1][1]
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            projection = _convolution(before, after, 1, stride)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(after, eps))
        for number, sizes in enumerate(convolutions, 1):
            self.add_module(f"conv{number}", _convolution(*sizes))
            self.add_module(f"bn{number}", nn.BatchNorm2d(sizes[1], eps))
        self.depth = len(convolutions)

    def forward(self, x: Tensor) -> Tensor:
        branch = x
        for number in range(1, self.depth + 1):
            branch = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(branch))
            branch = branch.relu() if number < self.depth else branch
        total: Tensor = branch + self.downsample(x)
        return total.relu()


class ResNet(nn.Module):
    """From pictures to the mean of the last feature maps."""

    def __init__(
        self,
        block: Callable[[int, int, int], Convolutions],
        depths: tuple[int, int, int, int],
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64, eps)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        before = 64
        for number, (width, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), 1):
            blocks = []
            for i in range(depth):
                stride = 2 if number > 1 and i == 0 else 1
                convolutions = block(before, width, stride)
                blocks.append(Residual(convolutions, stride, eps))
                before = convolutions[-1][1]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, H, W) to (batch, 512) or (batch, 2048)."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for number in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{number}")(x)
        return x.mean((2, 3))
