"""ResNet18 and ResNet50, in the layout of the published state dicts."""

from torch import Tensor, nn


def _convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


class Residual(nn.Module):
    """A branch of convolutions, added to the input; where the shape changes, the input is projected."""

    growth = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * self.growth
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(_convolution(before, after, 1, stride), nn.BatchNorm2d(after))

    def branch(self, x: Tensor) -> Tensor:
        """The convolutions; a subclass says which."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Branch plus input."""
        total: Tensor = self.branch(x) + self.downsample(x)
        return total.relu()


class Basic(Residual):
    """Two 3 x 3 convolutions."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width, stride)
        self.conv1 = _convolution(before, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)

    def branch(self, x: Tensor) -> Tensor:
        """The convolutions."""
        x = self.bn1(self.conv1(x)).relu()
        out: Tensor = self.bn2(self.conv2(x))
        return out


class Bottleneck(Residual):
    """1 x 1, 3 x 3 (which carries the stride), 1 x 1."""

    growth = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width, stride)
        self.conv1 = _convolution(before, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)

    def branch(self, x: Tensor) -> Tensor:
        """The convolutions."""
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        out: Tensor = self.bn3(self.conv3(x))
        return out


class EarlyStride(Bottleneck):
    """The stride is in the first 1 x 1, as in the first published networks."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width, stride)
        self.conv1.stride, self.conv2.stride = self.conv2.stride, self.conv1.stride


class ResNet(nn.Module):
    """Pictures to the mean of the last feature maps."""

    def __init__(self, block: type[Residual], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        before = 64
        for number, (width, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), 1):
            blocks = []
            for i in range(depth):
                blocks.append(block(before, width, 2 if number > 1 and i == 0 else 1))
                before = width * block.growth
            self.add_module(f"layer{number}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, H, W) to (batch, 512) or (batch, 2048)."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for number in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{number}")(x)
        return x.mean((2, 3))


def resnet18() -> ResNet:
    """18 layers, 512 features."""
    return ResNet(Basic, (2, 2, 2, 2))


def resnet50() -> ResNet:
    """50 layers, 2048 features."""
    return ResNet(Bottleneck, (3, 4, 6, 3))


def keras_resnet50() -> ResNet:
    """50 layers, 2048 features, as Keras has it: an early stride, and its own constant in batch normalisation."""
    network = ResNet(EarlyStride, (3, 4, 6, 3))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return network
