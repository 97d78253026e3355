"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread
from reproduction.published import Published

Cells = Sequence[str]


def table(header: Cells, rows: Iterable[Cells]) -> str:
    """A table."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---|" * (len(header) - 1)]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    ]
    return "\n".join(lines)


def folded(title: str, text: str) -> str:
    """Text that is folded under a title."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def picture(path: Path, folder: Path, description: str) -> str:
    """A picture in a document that lies in a folder."""
    return f"![{description}]({path.relative_to(folder).as_posix()})"


def rate(value: Spread | None, *, upwards: bool = False) -> str:
    """A rate in per cent with its deviation and the number of seeds."""
    return "–" if value is None else f"{rate_text(value, upwards=upwards)} ({value.seeds})"


def published_rate(value: Published | None) -> str:
    """A published rate in per cent."""
    if value is None:
        return "–"
    return rate_text(value.mean) + ("" if value.sd is None else f" ± {rate_text(value.sd)}")


def points(value: float) -> str:
    """A difference of rates in points, with its sign.

    >>> points(0.0123), points(-0.05)
    ('+1.23', '-5.00')
    """
    return f"{100 * value:+.2f}"


def paragraphs(*parts: str) -> str:
    """Parts with an empty line between them; empty parts are left out."""
    return "\n\n".join(part for part in parts if part)
