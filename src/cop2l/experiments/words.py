"""What a run says to people."""

from typing import Any

from cop2l.certify.sentences import P_VALUE, above_claim, nothing_picked
from cop2l.methods import REMARKS
from cop2l.text import duration, percent, rate


def typed(value: Any) -> str:
    """A value as it is typed on the command line; an empty table is nothing.

    >>> typed(None), typed(True), typed(0.05), typed(["tasks"]), typed({})
    ('none', 'true', '0.05', 'tasks', '')
    """
    if isinstance(value, list | tuple | dict):
        return ",".join(map(typed, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def brief(summary: dict[str, Any]) -> str:
    """The averages of a finished run, in one line."""
    forgetting = summary["forgetting"]
    words = [f"average accuracy {rate(summary['accuracy'])}"]
    words += [f"forgetting {rate(forgetting)}"] if forgetting is not None else []
    return ", ".join([*words, f"plasticity {rate(summary['plasticity'])}", duration(summary["seconds"])])


def done(name: str, summary: dict[str, Any] | None) -> str:
    """A finished run of a sweep, in one line."""
    return f"done  {name}  {brief(summary)}" if summary else f"done  {name}"


def table(summary: dict[str, Any]) -> str:
    """A finished run as text: one line per task, then the averages and what the bounds mean."""
    kinds = list(dict.fromkeys(kind for row in summary["tasks"] for kind in row["bounds"]))
    heads = ["task", "trained freely", "certified on", "picked", "test error", *kinds]
    lines = [
        [row["task"], *examples(row), rate(row["test_error"])]
        + [percent(row["bounds"][kind]) if kind in row["bounds"] else "" for kind in kinds]
        for row in summary["tasks"]
    ]
    cells = [heads, *[["" if cell is None else str(cell) for cell in line] for line in lines]]
    empty = [i for i in range(len(heads)) if not any(line[i] for line in cells[1:])]
    cells = [[cell for i, cell in enumerate(line) if i not in empty] for line in cells]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    text.append(brief(summary))
    text += [REMARKS[key]] if (key := (summary["method"], summary["model"])) in REMARKS else []
    if summary["kind"] in kinds:
        text.append(
            f"The claim is the column {summary['kind']}: with probability at least {1 - summary['delta']:g},"
            " over the draw of the examples, the true error on every task is at most that."
        )
    text += beside_claim(summary)
    if others := summary["sentences"]:
        alone = f"Claimed, with probability at least {1 - summary['delta']:g} over the draw of the examples, all at once:"
        text += ["Claimed as well, all of it at once:" if summary["kind"] in kinds else alone, *others]
    text += [f"Not valid: {reason}" for reason in summary["not_valid"] if summary["kind"]]
    return "\n".join(text)


def examples(row: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """How many examples of a task were trained on freely, certify, and were picked; None where that does not apply."""
    if row["picked"] is None:  # all is learned freely, but for what is withheld
        return row["n"], row.get("holdout", {}).get("n"), None
    return row["prior"], row["n"], row["picked"]


def beside_claim(summary: dict[str, Any]) -> list[str]:
    """What must be said beside the claim: that nothing was picked, or that a test error is above it."""
    rows, kind = summary["tasks"], summary["kind"]
    said = []
    if all(row["picked"] is not None for row in rows):
        said.append(nothing_picked(sum(row["n"] for row in rows), sum(row["picked"] for row in rows)))
    above = [
        above_claim(row["task"], row["test_error"], row["test_n"], row["bounds"][kind])
        for row in rows
        if kind in row["bounds"]
    ]
    return [sentence for sentence in (*said, *above, P_VALUE if any(above) else None) if sentence]
