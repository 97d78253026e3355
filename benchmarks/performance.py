"""python -m benchmarks.performance: writes reproduction/performance.md from the results in `benchmarks/results`.

The text is in performance.md; every number comes from a result. `make bench` measures the CPU results again.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "reproduction" / "performance.md"


def results() -> dict[str, Any]:
    """The content of every result, by name."""
    return {
        path.stem.replace("-", "_"): json.loads(path.read_text(encoding="utf-8"))
        for path in RESULTS.glob("*.json")
    }


def where(result: dict[str, Any]) -> str:
    """The command of a result, and where and when it was measured."""
    machine, versions = result["machine"], result["versions"]
    parts = [machine.get("gpu") or machine["processor"]]
    if machine.get("threads"):
        parts.append(f"{machine['threads']} thread" + "s" * (machine["threads"] > 1))
    parts.append(f"torch {versions['torch']}" + (f" (CUDA {versions['cuda']})" if "cuda" in versions else ""))
    rates = ", ".join(f"{rate:g} {unit}" for unit, rate in result["ceilings"].items())
    return f"`{result['command']}`; {', '.join(parts)}, {result['when']}; ceilings in the same run: {rates}."


def floor(row: dict[str, Any], result: dict[str, Any]) -> float:
    """Seconds that the operations or the bytes of a row take at least, at the rates of that run."""
    rates = result["ceilings"]
    return 1e-9 * max(row["operations"] / rates["Gflop/s"], row["bytes"] / rates["GB/s"])


def number(value: float) -> str:
    """Two digits, or all those before the point.

    >>> number(0.01234), number(1.234), number(12.34), number(1234.5)
    ('0.012', '1.2', '12', '1234')
    """
    return f"{value:.0f}" if value >= 10 else f"{float(f'{value:.2g}'):g}"


def document(measurements: dict[str, Any]) -> str:
    """The page, from the content of every result by name."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.globals |= {"where": where, "floor": floor, "median": statistics.median}
    environment.filters |= {"number": number}
    return environment.get_template("performance.md").render(measurements)


if __name__ == "__main__":
    PAGE.write_text(document(results()), encoding="utf-8")
    print(PAGE)
