"""Where the bits were made: what must be equal for them to be made again."""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch

from cop2l._version import __version__
from cop2l.certify.scoring import BLOCK


def environment(model: torch.nn.Module) -> dict[str, Any]:
    """Versions, processor, device, precision and thread count."""
    place = next(model.parameters())
    device = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else place.device.type
    return {
        "cop2l": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "dtype": str(place.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "block": BLOCK,
    }


BITS_DEPEND_ON = ("cop2l", "torch", "platform", "processor", "instructions", "device", "dtype", "block")
"""Another cop2l may learn or round otherwise. Other Python or numpy versions do not change the bits; the verifier sets
the thread count itself."""


@cache
def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
