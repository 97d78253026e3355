"""The torture of `verify`: attacks, forged certificates, hostile files and hostile runs; then reproduction/attacks.md.

python tests/torture/torture.py                       everything (`make torture`)
python tests/torture/torture.py mutations --count 500 one part, smaller
python tests/torture/torture.py page                  the page again, from the recorded results
"""

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", HERE.parents[1] / "reproduction" / "attacks.md"
SIZES = {"mutations": 1000, "files": 60, "runs": 60}
"""How many forgeries, files and runs; every verdict on the last two starts two processes."""


def mutations(count: int, seed: int) -> dict[str, Any]:
    """Forged certificates."""
    from torture_bases import bases
    from torture_mutations import Tally

    with tempfile.TemporaryDirectory() as scratch:
        honest, tally = bases(Path(scratch) / "honest"), Tally()
        for base in honest.values():
            assert base.audit(base.folders).status == "valid", base.name
        for number in range(count):
            tally.add(number, seed, honest, Path(scratch) / "forged")
    return {"results": table(tally.results), "accepted": table(tally.accepted), "broken": tally.broken}


def files(count: int, _: int) -> dict[str, Any]:
    """Hostile files: so many of all."""
    from torture_bases import bases
    from torture_files import all_files

    with tempfile.TemporaryDirectory() as scratch:
        bases(Path(scratch) / "honest")
        cases = all_files(Path(scratch) / "honest", Path(scratch))
        return judged(cases[:: max(1, len(cases) // count)], Path(scratch))


def runs(count: int, seed: int) -> dict[str, Any]:
    """Hostile run directories."""
    from torture_runs import hostile_runs, made

    with tempfile.TemporaryDirectory() as scratch:
        made(Path(scratch) / "honest")
        return judged(list(hostile_runs(Path(scratch) / "honest", count, seed)), Path(scratch))


def judged(cases: Sequence[Any], folder: Path) -> dict[str, Any]:
    """The exit code of every case, each in a process of its own."""
    from torture_judge import judge

    results: Counter[tuple[str, str]] = Counter()
    broken, seconds, memory = [], 0.0, 0
    for number, one in enumerate(cases):
        ((case, result),) = judge([one], folder / "cases" / str(number), busy=True)
        shutil.rmtree(folder / "cases", ignore_errors=True)
        results[case.kind, f"exit code {result.code}"] += 1
        seconds, memory = max(seconds, result.seconds), max(memory, result.memory)
        broken += [f"{case.kind}: {case.name[:200]}: {', '.join(result.invalid)}"] * bool(result.invalid)
    found = {"most seconds": round(seconds, 1), "most memory in MiB": round(memory / 2**20)}
    return {"results": table(results), "broken": broken, **found}


def table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Counts by kind, then by result."""
    table: dict[str, dict[str, int]] = {}
    for (kind, result), count in sorted(counts.items()):
        table.setdefault(kind, {})[result] = count
    return table


PARTS = {"mutations": mutations, "files": files, "runs": runs}


# ---- the page


TITLES = {
    "mutations": (
        "Forged certificates",
        (
            "Small honest certificates (every preset; class-, task- and domain-incremental; a number of "
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
            "Certificates of honest runs are edited, dropped, exchanged or planted, with all checksums made again. `cop2l verify RUN` "
            "must never end with 0 unless everything that its certificates state is true."
        ),
    ),
}


def attack_table(content: dict[str, Any]) -> list[str]:
    """The attacks of a hostile issuer, before and after."""
    from attacks import OUTSIDE

    lines = ["", f"## Attacks as a hostile issuer would make them: {len(content)}", "", ATTACKED, ""]
    lines += ["| attack | claim | truth | before | after |", "|---|---|---|---|---|"]
    for name, row in content.items():
        rates = (f"{100 * row[key]:.3g} %" if key in row else "" for key in ("claim", "truth"))
        codes = (
            f"{row.get(when)}{', lie printed' * bool(row.get(f'lie {when}'))}" for when in ("before", "after")
        )
        told = row["told"] + (f" (*{OUTSIDE[name]}*)" if name in OUTSIDE else "")
        lines.append(f"| {' | '.join([told, *rates, *codes])} |")
    return lines


ATTACKED = (
    "What is claimed is the smallest bound of the certificate, the truth the error rate on new examples; the numbers are exit codes of `cop2l verify` "
    "before and after the checker became a process of its own; 124: ended after ten minutes, on a busy machine. "
    "0 after: outside the [threat model](../docs/threat_model.md), by the sentence in brackets, which "
    "the verdict prints. `python tests/torture/attacks.py`, and the same with another source tree for the column before."
)


def page(results: dict[str, Any]) -> str:
    """The page of recorded results."""
    lines = [
        "# How `verify` was attacked",
        "",
        (
            "This page is written by `python tests/torture/torture.py` from `tests/torture/results.json`; `make torture` makes all of it "
            "again in minutes, on an idle machine; `--count` makes any part larger. A small part of everything here runs in `make test`."
        ),
        *attack_table(results["attacks"]),
    ]
    for part, (title, introduction) in TITLES.items():
        if part not in results:
            continue
        section = results[part]
        total = sum(sum(row.values()) for row in section["results"].values())
        lines += ["", f"## {title}: {total}", "", introduction, ""]
        lines += [f"`{section['command']}` (seed {section['seed']}, {section['date']})", ""]
        if section["broken"]:
            lines += [
                f"**{len(section['broken'])} broke through:**",
                "",
                *(f"- {line}" for line in section["broken"]),
                "",
            ]
        else:
            lines += ["**None broke through.**", ""]
        if "most seconds" in section:
            lines += [
                f"Longest: {section['most seconds']} s; most memory beyond an idle process: {section['most memory in MiB']} MiB.",
                "",
            ]
        columns = sorted({result for row in section["results"].values() for result in row})
        lines += [f"| kind | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for kind, row in section["results"].items():
            lines.append(f"| {kind} | {' | '.join(str(row.get(column, '')) for column in columns)} |")
        if "accepted" in section:
            reasons: dict[str, dict[str, int]] = {}
            for kind, row in section["accepted"].items():
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
    import attacks

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=[*PARTS, "attacks", "page"], help="all if none is named")
    parser.add_argument("--count", type=int, help=f"how many (default: {SIZES})")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # advice on the models of the attacks
    broke = attacks.main([]) if chosen.part in (None, "attacks") else 0
    for part in PARTS if chosen.part is None else PARTS.keys() & {chosen.part}:
        count = SIZES[part] if chosen.count is None else chosen.count
        result = PARTS[part](count, chosen.seed)
        command = f"python tests/torture/torture.py {part} --count {count} --seed {chosen.seed}"
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        record = {"command": command, "seed": chosen.seed, "date": today, **result}
        RESULTS.write_text(json.dumps(json.loads(RESULTS.read_text()) | {part: record}, indent=1) + "\n")
        print(
            f"{part}: {len(result['broken'])} broke through", *result["broken"][:20], sep="\n  ", flush=True
        )
        broke |= bool(result["broken"])
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
    return int(broke)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    raise SystemExit(main())
