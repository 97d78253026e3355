"""How often a test error lies above its claim, and whether chance explains it."""

from collections.abc import Sequence

from cop2l.report.runs import Run
from cop2l.report.sentences import tasks_above_claim
from reproduction.markdown import paragraphs, table

LEVEL = 0.05


def section(runs: Sequence[Run]) -> str:
    """For every kind of claim: how many runs have a test error above it, and how many significantly so."""
    claims = [run for run in runs if run.kind]
    statements = sum(run.kind in task.bounds for run in claims for task in run.tasks)
    found: dict[tuple[str, bool], list[float | None]] = {}
    for run in claims:
        least = min((p for p, _ in tasks_above_claim(run)), default=None)
        found.setdefault((str(run.kind), not run.not_valid), []).append(least)
    rows = []
    for (kind, valid), of_runs in sorted(found.items()):
        p = [value for value in of_runs if value is not None]
        significant = [sum(value <= limit for value in p) for limit in (LEVEL, LEVEL / statements)]
        smallest = f"{min(p):.2g}" if p else "–"
        rows.append((kind + "†" * (not valid), *map(str, (len(of_runs), len(p), *significant)), smallest))
    intro = (
        "A test part is a sample, too, so that its error may be above a claim that holds. The p-value is the probability of"
        f" as many test errors, or more, if the true error were the claim. Of all {len(claims)} runs here that claim something,"
        f" with {statements} claims; Bonferroni's level is {LEVEL} / {statements}."
    )
    header = (
        "claim",
        "runs",
        "with a test error above its claim",
        f"of these with a p-value of at most {LEVEL}",
        "after Bonferroni",
        "least p-value",
    )
    return paragraphs(intro, table(header, rows)) if rows else "No run claims anything."
