"""How often a test error is above its claim, and whether chance explains it."""

from collections.abc import Sequence

from cop2l.report.runs import Run
from cop2l.report.sentences import tasks_above_claim
from cop2l.text import P_VALUE
from reproduction.markdown import paragraphs, table

LEVEL = 0.05


def section(runs: Sequence[Run]) -> str:
    """For each kind of claim: how many runs have a test error above it, and how many significantly so."""
    claims = [run for run in runs if run.kind]
    statements = sum(run.kind in task.bounds for run in claims for task in run.tasks)
    least_by_claim: dict[tuple[str, bool], list[float | None]] = {}
    for run in claims:
        least = min((p for p, _ in tasks_above_claim(run)), default=None)
        least_by_claim.setdefault((str(run.kind), not run.not_valid), []).append(least)
    rows = []
    for (kind, valid), values in sorted(least_by_claim.items()):
        p = [value for value in values if value is not None]
        significant = [sum(value <= limit for value in p) for limit in (LEVEL, LEVEL / statements)]
        smallest = f"{min(p):.2g}" if p else "–"
        rows.append((kind + "†" * (not valid), *map(str, (len(values), len(p), *significant)), smallest))
    intro = (
        f"A test part is a sample, so its error can be above a claim that holds. {P_VALUE} {len(claims)} runs have a claim,"
        f" with {statements} statements on tasks; Bonferroni's level is {LEVEL} / {statements}."
    )
    header = (
        "claim",
        "runs",
        "with a test error above its claim",
        f"with a p-value of at most {LEVEL}",
        "after Bonferroni",
        "least p-value",
    )
    return paragraphs(intro, table(header, rows)) if rows else "No run has a claim."
