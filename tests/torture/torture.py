"""The torture of `verify`: forged certificates, hostile files, hostile runs and damage; then reproduction/attacks.md.

python tests/torture/torture.py                       everything (`make torture`)
python tests/torture/torture.py mutations --count 500 one part, smaller
python tests/torture/torture.py page                  the page again, from the recorded results
"""

import argparse
import datetime
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", HERE.parents[1] / "reproduction" / "attacks.md"
SIZES = {"mutations": 20_000, "files": 0, "runs": 500, "damage": 200}
"""How many forgeries, runs, and places in each file; the hostile files are listed one by one."""


def in_workers(work: Callable[..., Any], count: int, *arguments: Any, workers: int) -> list[Any]:
    """The work in some processes: each does every `workers`-th number."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        return pool.starmap(work, [(range(start, count, workers), *arguments) for start in range(workers)])


# ---- the parts


@cache
def honest_bases() -> tuple[tempfile.TemporaryDirectory[str], dict[str, Any]]:
    """The honest runs of this process."""
    from torture_bases import bases

    scratch = tempfile.TemporaryDirectory()
    found = bases(Path(scratch.name) / "honest")
    for base in found.values():
        status = base.audit(base.folders).status
        assert status == "valid", (base.name, status)
    return scratch, found


def mutations_of(numbers: Sequence[int], seed: int) -> dict[str, Any]:
    """Some forgeries."""
    from torture_mutations import Tally

    (scratch, honest), tally = honest_bases(), Tally()
    for number in numbers:
        tally.add(number, seed, honest, Path(scratch.name) / "forged")
    return {"results": tally.results, "accepted": tally.accepted, "broken": tally.broken}


def mutations(count: int, seed: int, workers: int) -> dict[str, Any]:
    """Forged certificates; if it is interrupted, those that were judged so far."""
    found, step = [], 100
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        work = partial(mutations_of, seed=seed)
        try:
            for one in pool.imap(
                work, [range(start, min(start + step, count)) for start in range(0, count, step)]
            ):
                found.append(one)  # noqa: PERF402
        except KeyboardInterrupt:
            pool.terminate()
    results: Counter[tuple[str, str]] = sum((one["results"] for one in found), Counter())
    accepted: Counter[tuple[str, str]] = sum((one["accepted"] for one in found), Counter())
    broken = [line for one in found for line in one["broken"]]
    return {"results": table(results), "accepted": table(accepted), "broken": broken}


def judged(numbers: Sequence[int], seed: int, part: str) -> dict[str, Any]:
    """Some hostile files or runs, each in a process of its own."""
    from torture_bases import bases
    from torture_files import all_files
    from torture_judge import forked, judge
    from torture_runs import AUDITOR, hostile_runs, made

    from cop2l.cli import main

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if part == "files":
            assert not forked(lambda: bases(folder / "honest") and 0).code
            cases = all_files(folder / "honest", folder)
            honest = ["verify", str(folder / "honest" / "0" / "after-2"), "--data", str(folder / "0.npz")]
            cases = [case for i, case in enumerate(cases) if not numbers or i in set(numbers)]
        else:
            assert not forked(lambda: made(folder / "honest")).code
            cases = [
                case
                for i, case in enumerate(hostile_runs(folder / "honest", max(numbers) + 1, seed))
                if i in set(numbers)
            ]
            honest = ["verify", str(folder / "honest" / "fixed" / "0"), *AUDITOR]
        with Path(os.devnull).open("w") as nowhere:  # everything is imported once, here
            sys.stdout, kept = nowhere, sys.stdout
            assert main(honest) == 0, honest
            sys.stdout = kept
        results: Counter[tuple[str, str]] = Counter()
        broken, seconds, memory = [], 0.0, 0
        for number, case in enumerate(cases):
            ((case, result),) = judge([case], folder / "cases" / str(number))
            shutil.rmtree(folder / "cases", ignore_errors=True)
            results[case.kind, f"exit code {result.code}"] += 1
            seconds, memory = max(seconds, result.seconds), max(memory, result.memory)
            broken += [f"{case.kind}: {case.name[:200]}: {', '.join(result.invalid)}"] * bool(result.invalid)
    return {"results": results, "broken": broken, "seconds": seconds, "memory": memory}


def files(count: int, seed: int, workers: int) -> dict[str, Any]:
    """Hostile files: all of them, or the first `count`."""
    from torture_files import how_many

    return both(in_workers(judged, count or how_many(), seed, "files", workers=workers))


def runs(count: int, seed: int, workers: int) -> dict[str, Any]:
    """Hostile run directories."""
    return both(in_workers(judged, count, seed, "runs", workers=workers))


def damage(count: int, seed: int, workers: int) -> dict[str, Any]:
    """Bit flips and truncations of every file of a run."""
    from torture_damage import damaged

    found = in_workers(damaged, count, seed, workers=workers)
    results: Counter[tuple[str, str]] = sum((one["results"] for one in found), Counter())
    return {"results": table(results), "broken": [line for one in found for line in one["broken"]]}


def both(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What several workers found."""
    return {
        "results": table(sum((one["results"] for one in found), Counter())),
        "broken": [line for one in found for line in one["broken"]],
        "most seconds": round(max(one["seconds"] for one in found), 1),
        "most memory in MiB": round(max(one["memory"] for one in found) / 2**20),
    }


def table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Counts by kind, then by result."""
    found: dict[str, dict[str, int]] = {}
    for (kind, result), count in sorted(counts.items()):
        found.setdefault(kind, {})[result] = count
    return found


PARTS = {
    "mutations": mutations,
    "files": files,
    "runs": runs,
    "damage": damage,
}


# ---- the page


TITLES = {
    "mutations": (
        "Forged certificates",
        (
            "Small honest certificates (presets `cop2l`, `hybrid` and `paper`; class-, task- and domain-incremental; a number of "
            "tasks fixed in advance, or anytime; a model of the issuer's own) are changed in one or two ways, every hash is made again, "
            "in half of them every bound too, and the kernel decides, nine times in ten with the data and the model at hand."
        ),
    ),
    "files": (
        "Hostile files",
        (
            "A certificate's files are replaced by what should not be there, and `cop2l verify` runs in a process of its own. It must "
            "end with exit code 1, 2 or 3 (0 only where what is stated is true), in one sentence without a traceback, print "
            "nothing that could steer a terminal, and take less than 10 seconds and 1 GiB."
        ),
    ),
    "runs": (
        "Hostile run directories",
        (
            "Files of honest runs are edited, dropped, exchanged or planted, with all checksums made again. `cop2l verify RUN` must "
            "never end with 0 unless everything that the directory states is true."
        ),
    ),
    "damage": (
        "Damage",
        (
            "One bit is flipped, or a file is cut, at random places of every file of a run. `cop2l verify RUN` must refuse it, or say "
            "word for word what it says of the honest run."
        ),
    ),
}


def page(results: dict[str, Any]) -> str:
    """The page of recorded results."""
    lines = [
        "# How `verify` was attacked",
        "",
        (
            "This page is written by `python tests/torture/torture.py` from `tests/torture/results.json`; `make torture` makes all of it "
            "again. The attacks of people, told as stories, are tests: `tests/torture/test_stories.py`. A small part of everything "
            "here runs in `make test`."
        ),
    ]
    for part, (title, words) in TITLES.items():
        if part not in results:
            continue
        found = results[part]
        total = sum(sum(row.values()) for row in found["results"].values())
        lines += ["", f"## {title}: {total}", "", words, ""]
        lines += [f"`{found['command']}` (seed {found['seed']}, {found['date']})", ""]
        if found["broken"]:
            lines += [
                f"**{len(found['broken'])} broke through:**",
                "",
                *(f"- {line}" for line in found["broken"]),
                "",
            ]
        else:
            lines += ["**None broke through.**", ""]
        if "most seconds" in found:
            lines += [
                f"Longest: {found['most seconds']} s; most memory beyond an idle process: {found['most memory in MiB']} MiB.",
                "",
            ]
        columns = sorted({result for row in found["results"].values() for result in row})
        lines += [f"| kind | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for kind, row in found["results"].items():
            lines.append(f"| {kind} | {' | '.join(str(row.get(column, '')) for column in columns)} |")
        if "accepted" in found:
            reasons: dict[str, dict[str, int]] = {}
            for kind, row in found["accepted"].items():
                for reason, count in row.items():
                    reasons.setdefault(reason, {})[kind] = count
            lines += [
                "",
                "Those that are valid state the truth, and these are all the reasons why; one forgery may have several.",
                "",
            ]
            lines += ["| reason | how many | kinds |", "|---|---|---|"]
            for reason, kinds in sorted(reasons.items(), key=lambda pair: -sum(pair[1].values())):
                listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
                lines.append(f"| {reason} | {sum(kinds.values())} | {listed} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the parts, record the results, write the page; 1 if anything broke through."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=[*PARTS, "page"], help="all of them if none is named")
    parser.add_argument("--count", type=int, help=f"how many (default: {SIZES})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in [chosen.part] if chosen.part else list(PARTS):
        if part == "page":
            continue
        count = SIZES[part] if chosen.count is None else chosen.count
        found = PARTS[part](count, chosen.seed, chosen.workers)
        command = f"python tests/torture/torture.py {part} --count {count} --seed {chosen.seed}"
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        results[part] = {"command": command, "seed": chosen.seed, "date": today, **found}
        recorded = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(recorded | {part: results[part]}, indent=1) + "\n")
        print(f"{part}: {len(found['broken'])} broke through", *found["broken"][:20], sep="\n  ", flush=True)
    PAGE.write_text(page(results))
    return int(any(results[part]["broken"] for part in results))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    raise SystemExit(main())
