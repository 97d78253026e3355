"""Results of a benchmark as JSON, with where they were measured."""

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l._version import __version__
from cop2l.kernel.verify import processor


def record(file: str | None, name: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the rows of a benchmark's table to a file, if one is named."""
    if file is None:
        return
    where = {
        "processor": processor(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    versions = {
        "cop2l": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    content = {
        "benchmark": name,
        "command": " ".join(["python", *sys.argv]),
        "when": time.strftime("%Y-%m-%d"),
        "settings": {key: value for key, value in settings.items() if key != "json"},
        "machine": where,
        "versions": versions,
        "rows": rows,
    }
    Path(file).write_text(json.dumps(content, indent=1) + "\n")
