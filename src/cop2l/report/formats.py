"""A table as text, Markdown, LaTeX and JSON."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from cop2l.errors import unknown
from cop2l.report.comparison import Cell, Table
from cop2l.report.groups import not_valid

NOT_VALID = "†"
TIES = (
    "Marked: best, or within one standard deviation of the best (over the seeds, the smaller of the two; single runs:"
    " the standard error on the test part; their bounds and times: equal as printed)."
)


def text(tables: Sequence[Table]) -> str:
    """Tables as aligned columns, with a star at the best."""
    blocks = []
    for table in tables:
        lines = [("method", *table.columns), *_rows(table, lambda best: f"{best}*", str)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        head, *body = (
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        blocks.append("\n".join([caption(table, "best marked *"), rule, head, rule, *body, rule]))
    blocks += dict.fromkeys(sentence for table in tables for sentence in footnotes(table))
    return "\n\n".join(blocks) + "\n"


def markdown(tables: Sequence[Table]) -> str:
    """Tables in Markdown, with the best in bold."""
    blocks = []
    for table in tables:
        lines = [
            tuple(map(_pipe, ("method", *table.columns))),
            ("---", *["---:"] * len(table.columns)),
            *_rows(table, lambda best: f"**{best}**", _pipe),
        ]
        notes = [f"\n{_pipe(sentence)}" for sentence in footnotes(table)]
        head = _pipe(caption(table, "best in bold"))
        blocks.append("\n".join([head, "", *(f"| {' | '.join(line)} |" for line in lines), *notes]))
    return "\n\n".join(blocks) + "\n"


def latex(tables: Sequence[Table]) -> str:
    """Tables in LaTeX for the package booktabs, with the best in bold."""
    blocks = []
    for table in tables:
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_tex(caption(table, 'best in bold'))}.}}",
            rf"  \begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"    \toprule",
            "    " + " & ".join(map(_tex, ("method", *table.columns))) + r" \\",
            r"    \midrule",
            *(
                f"    {' & '.join(row)} \\\\"
                for row in _rows(table, lambda best: rf"\textbf{{{best}}}", _tex)
            ),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\footnotesize {_tex(sentence)}" for sentence in footnotes(table)),
            r"\end{table}",
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def as_json(tables: Sequence[Table]) -> str:
    """A list of objects, one per cell, rates in [0, 1]."""
    records: list[dict[str, Any]] = [
        {
            "metric": cell.metric.name,
            "method": cell.group.method,
            "setting": dict(cell.group.setting),
            **cell.group.benchmark._asdict(),
            "seeds": cell.value.seeds,
            "mean": cell.value.mean,
            "sd": cell.value.sd,
            "best": cell.best,
            "not_valid": list(cell.group.not_valid),
        }
        for table in tables
        for cell in table.filled
    ]
    return json.dumps(records, indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "json": as_json,
}


def writer_of(name: str) -> Callable[[Sequence[Table]], str]:
    """The function that writes a format."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return FORMATS[name]


def caption(table: Table, best: str) -> str:
    """The title of a table, what its columns share and how to read its cells."""
    seeds = sorted({cell.value.seeds for cell in table.filled})
    parts = [table.shared] if table.shared else []
    span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    parts.append("one seed" if seeds == [1] else f"mean ± sd over {span} seeds")
    if any(cell.best for cell in table.filled):
        parts.append(best)
    return f"{table.title} ({'; '.join(parts)})"


def footnotes(table: Table) -> list[str]:
    """The rule for the best, the certificates that are not valid, and fewer seeds than the others."""
    rule = [TIES] if any(cell.best for cell in table.filled) else []
    doubtful = not_valid({cell.group.label: cell.group for cell in table.filled if not cell.valid}.values())
    notes = [f"{NOT_VALID} not valid: {who}. {reasons}" for who, reasons in doubtful]
    fewer = ["[n]: over n seeds only."] if len({cell.value.seeds for cell in table.filled}) > 1 else []
    return [*rule, *notes, *fewer]


def _rows(table: Table, mark: Callable[[str], str], escaped: Callable[[str], str]) -> list[tuple[str, ...]]:
    """The label of each row, and its cells: the number of the runs, marked if it is the best."""
    most_seeds = max(cell.value.seeds for cell in table.filled)

    def cell_text(cell: Cell | None) -> str:
        if cell is None:
            return escaped("–")
        number = cell.metric.text(cell.value.mean) + cell.metric.sd_text(cell.value.sd)
        number += f" [{cell.value.seeds}]" * (cell.value.seeds < most_seeds) + NOT_VALID * (not cell.valid)
        return mark(escaped(number)) if cell.best else escaped(number)

    return [
        (escaped(label), *map(cell_text, row)) for label, row in zip(table.rows, table.cells, strict=True)
    ]


def _pipe(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _tex(text: str) -> str:
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
    return "".join(special.get(c, c) for c in text)
