"""Computing the features of a data set, in shards: an interruption costs one shard at most."""

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.console import Progress
from cop2l.errors import UserError
from cop2l.features.store import PARTS, Entry, Writer, content_hash, data_names, lookup
from cop2l.files import Lock, read_tensors, write_tensors
from cop2l.models.backbones import Backbone
from cop2l.models.modules import from_module, named_backbone
from cop2l.models.weights import state_hash
from cop2l.streams import Labelled, Pictures, labelled

BATCH = {"cpu": 16, "cuda": 256}
"""Pictures per forward pass; on a CPU, larger batches only cost memory."""
SHARD = 1024
"""Pictures per shard. A shard begins with a new batch, so a resumed run computes the same batches and the same bits."""
RESIZE = {False: "bicubic, antialiased", True: "bicubic, antialiased, to bytes, when decoded"}


def extract(
    data: Labelled | str | Path,
    backbone: Backbone | nn.Module | str,
    *,
    size: int = 224,
    folder: str | Path | None = None,
    weights: str | Path | None = None,
    device: str = "auto",
    limit: int | None = None,
    pretrained_on: str | Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Entry:
    """The cache entry of a data set's features, computed if it is missing, resumed if it was interrupted.

    `data` and `backbone` are objects or names; `folder` holds a named data set. `limit` takes that many pictures of
    each part, evenly spread. `weights` is a local file; if it does not hold the published weights, name their training
    data in `pretrained_on`. After each batch, `progress` is called with part, done, total and rate (pictures per second).
    """
    if isinstance(backbone, str):
        backbone = named_backbone(backbone)
    elif not isinstance(backbone, Backbone):
        backbone = from_module(backbone)
    backbone.check(size)
    if limit is not None and limit < 1:
        raise UserError(f"limit is {limit}; give at least 1 picture.")
    torch_device = _device(device)
    data = _take_evenly(data if isinstance(data, Labelled) else labelled(data, folder=folder), limit)
    parts = {"train": (data.x, data.y), "test": (data.x_test, data.y_test)}
    for x, _ in parts.values():
        if not isinstance(x, Pictures) and (x.ndim != 4 or x.shape[1] not in (1, 3) or x.dtype != np.uint8):
            raise UserError(f"{data.name} does not hold pictures; give a data set of pictures.")
    network = backbone.load(weights)
    spec = {"size": size, "limit": limit, "precision": "float32", **_spec(data, backbone, network)}
    if (entry := lookup(content_hash(spec))) is not None:
        return entry.trained_on(pretrained_on)
    extractor = Extractor(network.to(torch_device), backbone, size, torch_device)
    writer = Writer(spec)
    busy = "Another process ({holder}) is computing these features; wait until it is done."
    with Lock(writer.lock, busy):
        for part, (x, y) in parts.items():
            writer.write(part, y, _shards(extractor, x, writer.folder / part, part, progress))
        for part in PARTS:
            shutil.rmtree(writer.folder / part)
        return writer.finish(
            pretrained_on=data_names(backbone.pretrained_on if pretrained_on is None else pretrained_on),
            classes=data.classes,
            class_names=list(data.names),
            device=str(torch_device),
            torch=torch.__version__,
        )


def _spec(data: Labelled, backbone: Backbone, network: nn.Module) -> dict[str, Any]:
    """All that the features depend on besides the options: data, weights and preprocessing."""
    code = {} if backbone.code is None else {"code": backbone.code}
    return {
        "dataset": re.sub(r"[@#:]", "_", data.name),
        "backbone": backbone.name,
        "weights": state_hash(network),
        "preprocessing": {
            "resize": RESIZE[isinstance(data.x, Pictures)],
            "mean": backbone.mean,
            "std": backbone.std,
        },
        "data": data.fingerprints(),
        **code,
    }


@dataclass(frozen=True)
class Extractor:
    """From pictures of bytes to features."""

    network: nn.Module
    backbone: Backbone
    size: int
    device: torch.device

    @torch.inference_mode()
    def __call__(self, pictures: np.ndarray) -> np.ndarray:
        """float32 features of uint8 pictures (n, channels, height, width)."""
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(self.device).float()
        if x.shape[2:] != (self.size, self.size):
            x = F.interpolate(x, size=(self.size, self.size), mode="bicubic", antialias=True).clamp(0, 255)
        mean = torch.tensor(self.backbone.mean, device=self.device).view(-1, 1, 1)
        std = torch.tensor(self.backbone.std, device=self.device).view(-1, 1, 1)
        features = self.features((x / 255 - mean) / std)
        if not features.isfinite().all():
            raise UserError(f"{self.backbone.name} gives features that are not finite; correct its weights.")
        return features.float().cpu().numpy()

    def features(self, x: Tensor) -> Tensor:
        """The output of the network, which must be one row of features for each picture."""
        output = self.network(x)
        if not isinstance(output, Tensor):
            kind = f"a {type(output).__name__}"
        elif output.ndim != 2 or len(output) != len(x) or not output.is_floating_point():
            kind = f"{output.dtype} numbers of shape {tuple(output.shape)}"
        else:
            return output
        raise UserError(
            f"{self.backbone.name} gives {kind} for {len(x)} pictures instead of one row of features for each; wrap it in a "
            "module that returns such rows."
        )


def _shards(
    extractor: Extractor, x: Any, folder: Path, part: str, progress: Progress | None
) -> Iterator[np.ndarray]:
    """The features of x shard by shard; shards of an interrupted run are read, the others computed and stored."""
    folder.mkdir(parents=True, exist_ok=True)
    start, computed = time.monotonic(), 0
    for begin in range(0, len(x), SHARD):
        end = min(begin + SHARD, len(x))
        path = folder / f"{begin:09d}.safetensors"
        features = _read_shard(path, end - begin)
        if features is None:
            batches = []
            step = BATCH.get(extractor.device.type, BATCH["cpu"])
            for first in range(begin, end, step):
                rows = range(first, min(first + step, end))
                if isinstance(x, Pictures):  # their sizes differ: each is resized when it is decoded
                    batches.append(extractor(np.stack([x.decode(row, extractor.size) for row in rows])))
                else:
                    batches.append(extractor(x[rows.start : rows.stop]))
                computed += len(batches[-1])
                if progress is not None:
                    rate = computed / max(time.monotonic() - start, 1e-9)
                    progress({"part": part, "done": first + len(batches[-1]), "total": len(x), "rate": rate})
            features = np.concatenate(batches)
            write_tensors(path, {"features": torch.from_numpy(features)}, {})
        yield features


def _take_evenly(data: Labelled, limit: int | None) -> Labelled:
    """At most `limit` pictures of each part, evenly spread, because folders hold pictures class by class."""
    if limit is None:
        return data
    sizes = ((n, min(n, limit)) for n in (len(data.y), len(data.y_test)))
    train, test = (np.arange(size) * n // max(size, 1) for n, size in sizes)
    return replace(data, x=data.x[train], y=data.y[train], x_test=data.x_test[test], y_test=data.y_test[test])


def _read_shard(path: Path, rows: int) -> np.ndarray | None:
    """A stored shard; None if it is missing or damaged."""
    try:
        features = read_tensors(path)[0]["features"].numpy()
    except (UserError, KeyError):
        return None
    return features if features.shape[:1] == (rows,) else None


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"The device {name!r} does not work on this machine; use --device cpu.") from None
    return device
