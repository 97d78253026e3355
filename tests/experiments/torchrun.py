"""torchrun, as a user starts it, on one machine."""

import os
import subprocess
import sys


def torchrun(ranks, *words, cwd=None, **environment):
    """The finished process with all that it and its ranks have printed."""
    known = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*launcher, *map(str, words)],
        env=known,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
