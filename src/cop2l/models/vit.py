"""The vision transformer of DINO and DINOv2, with the parameter names of the published state dicts."""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Scale(nn.Module):
    """LayerScale: one learned factor per channel of a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Attention and perceptron; each normalises its input and is added to it."""

    def __init__(self, width: int, heads: int, layer_scale: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.ls1 = Scale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        first, second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=first, gelu=nn.GELU(), fc2=second))
        self.ls2 = Scale(width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class ViT(nn.Module):
    """From pictures to the class token; the position embedding is resized to the picture's grid of patches.

    The published code resizes it without antialiasing, and to 0.1 patch more than the grid. Small pictures need
    `antialias`, which resizes it as a picture.
    """

    def __init__(
        self,
        patch: int,
        grid: int,
        *,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        layer_scale: bool = False,
        antialias: bool = False,
    ) -> None:
        super().__init__()
        self.antialias = antialias
        self.patch_embed = nn.Sequential(OrderedDict(proj=nn.Conv2d(3, width, patch, patch)))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid * grid, width))
        self.blocks = nn.Sequential(*(Block(width, heads, layer_scale) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised class token of each picture."""
        patches = self.patch_embed(x).permute(0, 2, 3, 1)
        tokens = patches.flatten(1, 2) + self._positions(patches.shape[1], patches.shape[2])
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
        out: Tensor = self.norm(self.blocks(torch.cat([first, tokens], 1))[:, 0])
        return out

    def _positions(self, rows: int, columns: int) -> Tensor:
        positions = self.pos_embed[:, 1:]
        side = math.isqrt(positions.shape[1])
        if (rows, columns) == (side, side):
            return positions
        plane = positions.reshape(1, side, side, -1).permute(0, 3, 1, 2)
        if self.antialias:
            plane = F.interpolate(plane, size=(rows, columns), mode="bicubic", antialias=True)
        else:
            factors = ((rows + 0.1) / side, (columns + 0.1) / side)
            plane = F.interpolate(plane, scale_factor=factors, mode="bicubic")
        return plane.permute(0, 2, 3, 1).flatten(1, 2)
