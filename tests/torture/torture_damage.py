"""Damage: one bit flipped, or the end cut off, at random places of every file of a run."""

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torture_runs import RUNS, made

from cop2l.audit.verify import verify
from cop2l.errors import UserError
from cop2l.kernel.form import Unreadable

UNSPOKEN = ("lock", "trace.jsonl", "environment.json")
"""Files of which nothing is claimed."""


def words(folder: Path) -> str:
    """The whole verdict on a run, or the sentence that refuses it."""
    try:
        found = verify(folder, "synthetic", split={"tasks": 2, "n": 60}, limit=1e11)
    except (Unreadable, UserError) as error:
        return f"refused: {error}"
    return f"{found.status}: {found}"


def damaged(numbers: Sequence[int], seed: int) -> dict[str, Any]:
    """Every file of every kind of run, damaged at the places of these numbers."""
    results: Counter[tuple[str, str]] = Counter()
    broken = []
    with tempfile.TemporaryDirectory() as scratch:
        made(Path(scratch))
        for name in RUNS:
            folder = Path(scratch) / name / "0"
            honest = words(folder)
            assert honest.startswith("valid"), honest
            for file in sorted(
                path for path in folder.rglob("*") if path.is_file() and path.name not in UNSPOKEN
            ):
                whole, what = file.read_bytes(), str(file.relative_to(folder))
                for number in numbers if whole else ():
                    draw = random.Random(f"{seed} {what} {number}")
                    place = draw.randrange(len(whole))
                    hurt = bytearray(whole[:place] if number % 2 else whole)
                    if number % 2 == 0:
                        hurt[place] ^= 1 << draw.randrange(8)
                    file.write_bytes(hurt)
                    try:
                        found = words(folder)
                    except Exception as error:  # whatever it is, it is to be reported
                        found = f"crash: {type(error).__name__}"
                    result = "the same verdict" if found == honest else found.partition(":")[0]
                    results[what, result] += 1
                    if result in ("valid", "crash"):
                        broken.append(f"{name}, {what}, place {place} of number {number}: {found[:200]}")
                file.write_bytes(whole)
    return {"results": results, "broken": broken}
