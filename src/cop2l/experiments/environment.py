"""The environment of a run: versions, device, threads."""

import os
import platform
import shlex
import sys
from typing import Any

import numpy as np
import torch

from cop2l._version import __version__
from cop2l.kernel.exact import processor


def environment(device: torch.device, **entries: Any) -> dict[str, Any]:
    """Versions, device, CPU, threads and command, with further entries.

    Starts no process, as `platform.platform()` would: a child would hold the lock of a run that is killed.
    """
    cuda = device.type == "cuda"
    return {
        "cop2l": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "command": shlex.join(sys.argv),
        **entries,
    }
