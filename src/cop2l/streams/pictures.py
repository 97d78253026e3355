"""Pictures: bytes to model inputs."""

import numpy as np


class Scaled:
    """(x / top - mean) / std in float32, channel by channel, by a table of the values that a byte can have.

    >>> Scaled((0.5,), (0.5,))(np.array([[[[0, 255]]]], np.uint8))
    array([[[[-1.,  1.]]]], dtype=float32)
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], top: int = 255) -> None:
        byte = np.arange(256, dtype=np.float64) / top
        self.tables = [((byte - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(x.shape, np.float32)
        for channel, table in enumerate(self.tables):
            out[:, channel] = table[x[:, channel]]
        return out
