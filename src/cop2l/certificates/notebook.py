"""HTML for notebooks: one look for a learner, a certificate and a verdict, light or dark, without a style sheet."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

ACCENT, ALARM, QUIET = "#1c7ed6", "#d9480f", "#868e96"
"""Colours that stand out from a light ground and from a dark one."""
CELL = "text-align:{};padding:.25em 1em .25em 0;border:0;background:none"


def card(title: str, *parts: str, colour: str = ACCENT) -> str:
    """A block with a coloured line at its side; the title is text, the parts are HTML."""
    return (
        f'<div style="max-width:50em;margin:.5em 0;padding:.1em 0 .1em 1em;border-left:3px solid {colour}">'
        f'<div style="font-size:1.1em;font-weight:600">{escape(title)}</div>{"".join(parts)}</div>'
    )


def table(
    rows: Iterable[Sequence[Any]],
    head: Sequence[Any] = (),
    *,
    text_columns: Sequence[int] = (0,),
    bold: Sequence[tuple[int, int]] = (),
) -> str:
    """A small table: the columns in `text_columns` are aligned to the left, and the cells at `bold` (row, column) are bold."""

    def line(cells: Sequence[Any], tag: str, styles: Sequence[str]) -> str:
        html = (
            f'<{tag} style="{CELL.format("left" if i in text_columns else "right")}{style}">{escape(str(cell))}</{tag}>'
            for i, (cell, style) in enumerate(zip(cells, styles, strict=True))
        )
        return f'<tr style="background:none">{"".join(html)}</tr>'

    lines = [line(head, "th", [f";color:{QUIET};font-weight:500"] * len(head))] if head else []
    for r, row in enumerate(rows):
        lines.append(line(row, "td", [";font-weight:700" * ((r, i) in bold) for i in range(len(row))]))
    style = "margin:.4em 0;border-collapse:collapse;font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{"".join(lines)}</table>'


def paragraph(text: str) -> str:
    return f'<p style="margin:.3em 0">{escape(text)}</p>'


def folded_list(title: str, sentences: Sequence[str], *, folded: bool = True) -> str:
    """Sentences under a title, folded away or not; an empty text if there are none."""
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    head = f'<details style="margin:.3em 0"{"" if folded else " open"}><summary>{escape(title)}</summary>'
    return f'{head}<ul style="margin:.3em 0">{items}</ul></details>'
