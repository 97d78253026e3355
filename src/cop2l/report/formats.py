"""A comparison as text, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cop2l.errors import unknown
from cop2l.report.comparison import Cell, Comparison, quoted, written, written_sd
from cop2l.report.groups import not_valid
from cop2l.report.published import sources

NOT_VALID = "†"
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
RECORD = (
    *("metric", "method", "setting", "stream", "scenario", "model", "tasks", "seeds", "mean", "sd"),
    *("published", "published_sd", "source", "best", "not_valid"),
)
"""The columns of CSV: also where there is no row, the header is whole."""


def text(comparisons: Sequence[Comparison], *, bold: bool = False) -> str:
    """Aligned columns; the best is bold on a terminal and carries a star elsewhere."""
    blocks = []
    for table in comparisons:
        grid = [["method", *table.columns]]
        grid += [
            [label, *(_ours(cell, table, "", "" if bold else "*") + _beside(cell, table) for cell in row)]
            for label, row in zip(table.rows, table.cells, strict=True)
        ]
        widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
        lines = [[word.ljust(width) for word, width in zip(line, widths, strict=True)] for line in grid]
        if bold:
            for line, row in zip(lines[1:], table.cells, strict=True):
                line[1:] = [
                    f"{BOLD}{word}{PLAIN}" if cell and cell.best else word
                    for word, cell in zip(line[1:], row, strict=True)
                ]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        body = ["  ".join(line).rstrip() for line in lines]
        best = "best in bold" if bold else "best marked *"
        blocks.append(
            "\n".join([caption(table, best), rule, body[0], rule, *body[1:], rule, *footnotes(table)])
        )
    return "\n\n".join(blocks) + "\n"


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Pipe tables with the best in bold."""
    blocks = []
    for table in comparisons:
        lines = [
            "| " + " | ".join(_pipe(word) for word in ("method", *table.columns)) + " |",
            "|" + "---|" + "---:|" * len(table.columns),
        ]
        for label, row in zip(table.rows, table.cells, strict=True):
            words = [_pipe(_ours(cell, table, "**", "**") + _beside(cell, table)) for cell in row]
            lines.append("| " + " | ".join([_pipe(label), *words]) + " |")
        reasons = [f"\n{_pipe(sentence)}" for sentence in footnotes(table)]
        blocks.append("\n".join([_pipe(caption(table, "best in bold")), "", *lines, *reasons]))
    return "\n\n".join(blocks) + "\n"


def latex(comparisons: Sequence[Comparison]) -> str:
    """One table per metric, ruled by the package booktabs."""
    blocks = []
    for table in comparisons:
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_tex(caption(table, 'best in bold').capitalize())}.}}",
            rf"  \begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"    \toprule",
            "    " + " & ".join(_tex(word) for word in ("method", *table.columns)) + r" \\",
            r"    \midrule",
        ]
        for label, row in zip(table.rows, table.cells, strict=True):
            words = [
                (
                    rf"\textbf{{{_tex(_ours(cell, table))}}}"
                    if cell and cell.best
                    else _tex(_ours(cell, table))
                )
                + _tex(_beside(cell, table))
                for cell in row
            ]
            lines.append("    " + " & ".join([_tex(label), *words]) + r" \\")
        reasons = [rf"  \par\footnotesize {_tex(sentence)}" for sentence in footnotes(table)]
        blocks.append("\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", *reasons, r"\end{table}"]))
    return "\n\n".join(blocks) + "\n"


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """One line per cell, rates in [0, 1]."""
    out = io.StringIO()
    writer = csv.DictWriter(out, RECORD, lineterminator="\n")
    writer.writeheader()
    for record in _records(comparisons):
        setting = " ".join(f"{k}={v}" for k, v in record["setting"].items())
        row = {**record, "setting": setting, "not_valid": " ".join(record["not_valid"])}
        writer.writerow({key: _inert(value) for key, value in row.items()})
    return out.getvalue()


def as_json(comparisons: Sequence[Comparison]) -> str:
    """A list of objects, one per cell, rates in [0, 1]."""
    return json.dumps(_records(comparisons), indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}


def chosen(name: str, *, terminal: bool) -> Callable[[Sequence[Comparison]], str]:
    """The writer of a format; on a terminal, text is bold where it is best."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return partial(text, bold=True) if name == "text" and terminal else FORMATS[name]


def caption(table: Comparison, best: str) -> str:
    """What the table shows, in one line."""
    unit = {"%": "%", "s": "seconds", "x": "ratio"}.get(table.metric.unit, table.metric.unit)
    seeds = sorted({cell.ours.seeds for cell in table.filled})
    words = [table.shared] if table.shared else []
    if seeds == [1]:
        words.append("one seed")
    elif seeds:
        span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        words.append(f"mean ± sd over {span} seeds")
    if any(cell.best for cell in table.filled):
        words.append(best)
    if beside := [cell.published for cell in table.filled if cell.published]:
        where = sources(beside)
        words.append(f"published numbers in parentheses{f', from {where}' if where else ''}")
    return f"{table.metric.title}, {unit} ({'; '.join(words)})"


def _ours(cell: Cell | None, table: Comparison, before: str = "", after: str = "") -> str:
    """Our number, between two marks if it is the best."""
    if cell is None:
        return "–"
    words = written(cell.ours.mean, table.metric) + written_sd(cell.ours.sd, table.metric)
    if cell.ours.seeds < max(other.ours.seeds for other in table.filled):
        words += f" [{cell.ours.seeds}]"
    if not cell.valid:
        words += NOT_VALID
    return f"{before}{words}{after}" if cell.best else words


def cell_text(cell: Cell | None, table: Comparison) -> str:
    """A number as a table shows it, with a published one beside it, and no mark for the best."""
    return _ours(cell, table) + _beside(cell, table)


def _beside(cell: Cell | None, table: Comparison) -> str:
    return f" ({quoted(cell.published, table.metric)})" if cell and cell.published else ""


def footnotes(table: Comparison) -> list[str]:
    """Footnotes: the certificates that are not valid, and fewer seeds than the others."""
    doubtful = not_valid(cell.group for cell in table.filled if not cell.valid)
    notes = [f"{NOT_VALID} not valid: {who}. {reasons}" for who, reasons in doubtful]
    seeds = {cell.ours.seeds for cell in table.filled}
    fewer = ["[n]: over n seeds only."] if len(seeds) > 1 else []
    return [*notes, *fewer]


def _records(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "metric": table.metric.name,
            "method": cell.group.method,
            "setting": dict(cell.group.setting),
            **cell.group.benchmark._asdict(),
            "seeds": cell.ours.seeds,
            "mean": cell.ours.mean,
            "sd": cell.ours.sd,
            "published": cell.published.mean if cell.published else None,
            "published_sd": cell.published.sd if cell.published else None,
            "source": cell.published.source if cell.published else None,
            "best": cell.best,
            "not_valid": list(cell.group.not_valid),
        }
        for table in comparisons
        for cell in table.filled
    ]


def _inert(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers."""
    if not isinstance(cell, str):
        return cell
    formula = cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return "'" * formula + cell.replace("\r", " ")  # csv does not quote a carriage return


def _pipe(word: str) -> str:
    return word.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _tex(word: str) -> str:
    special = {c: "\\" + c for c in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "–": "--",
        "†": r"$\dagger$",
        "\n": " ",
    }
    return "".join(special.get(c, c) for c in word)
