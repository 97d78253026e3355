"""`cop2l verify` in a process of its own for every case, measured: exit code, words, memory and time."""

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

MOST_SECONDS, MOST_MEMORY, MOST_WORDS = 10, 2**30, 20_000
KILLED_AFTER = 600


@dataclass
class Case:
    """Something hostile, and how to lay it out in an empty folder; what it gives back is verified."""

    kind: str
    name: str
    lay: Callable[[Path], Path]
    arguments: tuple[str, ...] = ()
    harmless: bool = False
    """Whether it states the truth: then it may be found valid."""


@dataclass
class Result:
    """What a process did."""

    code: int
    output: str
    seconds: float
    memory: int
    invalid: list[str] = field(default_factory=list)


def forked(work: Callable[[], Any]) -> Result:
    """Do some work in a copy of this process, and measure it."""
    with tempfile.TemporaryFile() as output_file:
        child = os.fork()
        if not child:
            code = 70
            try:
                os.dup2(output_file.fileno(), 1)
                os.dup2(output_file.fileno(), 2)
                sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
                sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
                signal.alarm(KILLED_AFTER)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                try:
                    code = int(work() or 0)
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 1
                except BaseException:
                    import traceback

                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        _, status, usage = os.wait4(child, 0)
        seconds = usage.ru_utime + usage.ru_stime  # of its own: the machine may be busy
        output_file.seek(0)
        output = output_file.read().decode("utf-8", "replace")
    return Result(os.waitstatus_to_exitcode(status), output, seconds, usage.ru_maxrss * 1024)


def judge(cases: Sequence[Case], folder: Path, busy: bool = False) -> list[tuple[Case, Result]]:
    """Every case through the command line; what is wrong with a result is listed in it, but for time on a busy machine."""
    from cop2l.cli import main

    idle = idle_memory()
    results = []
    for number, case in enumerate(cases):
        place = folder / str(number)
        place.mkdir(parents=True)
        path = case.lay(place)
        result = forked(lambda path=path, case=case: main(["verify", str(path), *case.arguments]))
        result.memory = max(0, result.memory - idle)
        result.invalid = [fault for fault in faults(case, result) if not (busy and fault.endswith(" s"))]
        results.append((case, result))
    return results


def faults(case: Case, result: Result) -> list[str]:
    """Everything that must not be."""
    allowed = (0, 1, 2, 3) if case.harmless else (1, 2, 3)
    unprintable = {letter for letter in result.output if not (letter.isprintable() or letter == "\n")}
    checks = {
        f"exit code {result.code}": result.code in allowed,
        "a traceback": "Traceback" not in result.output,
        f"unprintable {unprintable}": not unprintable,
        f"{len(result.output)} letters of output": len(result.output) < MOST_WORDS,
        f"{result.memory / 2**20:.0f} MiB": result.memory < MOST_MEMORY,
        f"{result.seconds:.1f} s": result.seconds < MOST_SECONDS,
        "a bound is called valid": case.harmless or "\nVALID" not in result.output,
    }
    return [wrong for wrong, good in checks.items() if not good]


@cache
def idle_memory() -> int:
    """What a process has that finds nothing to verify."""
    from cop2l.cli import main

    return forked(lambda: main(["verify", "nothing"])).memory
