"""Start torchrun on one machine."""

import os
import subprocess
import sys


def torchrun(ranks, *arguments, cwd=None, **environment):
    """The finished process, with the output of all its ranks."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*launcher, *map(str, arguments)],
        env=variables,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
