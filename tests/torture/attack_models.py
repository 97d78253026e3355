"""Models of an issuer's own, as an auditor would have them imported."""

import torch
from torch import Tensor, nn


class BatchMean(nn.Module):
    """Every row of a batch is answered by the mean of the batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x if self.training else x.mean(0, keepdim=True).expand_as(x))


class Remembers(nn.Module):
    """Once it was trained: right on every row that it was asked before, and wrong on all others."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head, self.asked = nn.Linear(6, 2), {}

    def forward(self, x: Tensor) -> Tensor:
        rows = [row.numpy().tobytes() for row in x.detach()]
        self.asked.update({"trained": True} if self.training else {})
        again = torch.tensor(["trained" in self.asked and row in self.asked for row in rows])
        self.asked.update(dict.fromkeys(rows))
        right = (x[:, :1] > 0).float()
        return self.head(x) * 1e-3 + torch.where(again[:, None], 8.0, -8.0) * torch.cat([1 - right, right], 1)


def batch_mean(seed: int) -> nn.Module:
    """What the auditor's option --model names."""
    return BatchMean(seed)


def remembers(seed: int) -> nn.Module:
    """What the auditor's option --model names."""
    return Remembers(seed)
