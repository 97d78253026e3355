"""torchrun, as a user starts it, on one machine."""

import os
import subprocess
import sys


def torchrun(ranks, *words, **environment):
    """The finished process with all that it and its ranks have printed."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        *map(str, words),
    ]
    known = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=known, capture_output=True, text=True, check=False, timeout=300)
