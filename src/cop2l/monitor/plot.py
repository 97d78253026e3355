"""The evidence over time, as a picture."""

import math
from pathlib import Path
from typing import Any

from cop2l.errors import UserError
from cop2l.monitor.monitor import Monitor
from cop2l.monitor.words import bound_of, claim_of
from cop2l.report import theme
from cop2l.report.figures.figure import Figure, Key, Panel, save


def evidence(monitor: Monitor) -> Figure:
    """The evidence at the ends of batches, in powers of ten, and where the alarm is."""
    points = monitor.trajectory
    if not points:
        raise UserError("There is nothing to plot yet; give some feedback first.")

    def draw() -> dict[str, Any]:
        import altair as alt

        rows = [{"n": n, "evidence": value / math.log(10), "errors": errors} for n, errors, value in points]
        title = "evidence against the claim, powers of ten"
        line = alt.Chart({"values": rows}).mark_line(color=theme.colour("blue"), strokeWidth=2)
        line = line.encode(x=alt.X("n:Q", title="examples with feedback"), y=alt.Y("evidence:Q", title=title))
        at = [{"evidence": -math.log10(monitor.alpha), "words": f"alarm, alpha = {monitor.alpha:g}"}]
        rule = alt.Chart({"values": at}).mark_rule(color=theme.colour("alarm"), strokeDash=[6, 3])
        name = alt.Chart({"values": at}).mark_text(color=theme.colour("alarm"), dx=70, dy=-8)
        shown = [
            line,
            rule.encode(y="evidence:Q"),
            name.encode(y="evidence:Q", x=alt.value(0), text="words:N"),
        ]
        made: dict[str, Any] = alt.layer(*shown).properties(height=230).to_dict()
        return made

    words = f"Is {claim_of(monitor.statement)} at most {bound_of(monitor)}?"
    rows = tuple((str(n), str(errors), f"{value:.3f}") for n, errors, value in points)
    header = ("examples", "errors", "ln evidence")
    return Figure(
        "evidence", words, words, (Panel("", draw, words),), (Key("evidence", "blue"),), header, rows
    )


def save_plot(monitor: Monitor, path: Path) -> None:
    """Draw it: PNG, SVG or PDF by the name's ending."""
    save([evidence(monitor)], path)
