"""Numbers quoted in sentences, looked up in the runs: no sentence can say what no run gave.

`{accuracy of replay on mnist, 5 tasks, class-incremental, mlp}` becomes the mean over the seeds in per cent,
`{paper's accuracy of ...}` the published number, and `{accuracy of replay with lr 0.1 on ...}` that of a changed setting.
What the runs at hand do not give becomes a dash.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cop2l.errors import UserError
from cop2l.report.figures.figure import rate_text
from cop2l.report.metric import metric
from cop2l.text import rounded_text
from reproduction.explanations import Explanations
from reproduction.ours import USUAL_MODELS, Sample
from reproduction.published import tables

QUOTE = re.compile(r"\{([^{}]+)\}")
FORM = re.compile(
    r"(?P<paper>paper's )?(?P<metric>[\w-]+) of (?P<method>[\w-]+)( with (?P<changes>.+?))? on (?P<stream>.+)"
)


def filled(given: Explanations, found: Sequence[Sample]) -> Explanations:
    """The same explanations with every quoted number in its place."""

    def entry(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {k: quoted(v, found) if isinstance(v, str) else v for k, v in fields.items()}

    return replace(
        given,
        differs=tuple(map(entry, given.differs)),
        order=tuple(map(entry, given.order)),
        surprises=tuple(map(entry, given.surprises)),
        notes=entry(given.notes),
    )


def quoted(text: str, found: Sequence[Sample]) -> str:
    """The text with its quoted numbers."""
    return QUOTE.sub(lambda match: _value(match[1], found), text)


def _value(quote: str, found: Sequence[Sample]) -> str:
    form = FORM.fullmatch(" ".join(quote.split()))
    if form is None:
        raise UserError(
            f"'{quote}' is no quotation; write: METRIC of METHOD [with OPTION VALUE, ...] on STREAM."
        )
    value = _published(form) if form["paper"] else _ours(form, found)
    if value is None or metric(form["metric"]).certified:
        return rate_text(value, upwards=True)
    return rounded_text(value, 1, "100")


def _ours(form: re.Match[str], found: Sequence[Sample]) -> float | None:
    changes = dict(change.split(" ", 1) for change in (form["changes"] or "").split(", ") if change)
    head = changes.pop("head", None)
    for sample in found:
        same = {key: str(value) for key, value in sample.changes} == changes
        usual = sample.stream.model == head if head else sample.stream.model in USUAL_MODELS
        if same and usual and (sample.stream.name, sample.method) == (form["stream"], form["method"]):
            value = sample.spread(form["metric"])
            return value.mean if value else None
    return None


def _published(form: re.Match[str]) -> float | None:
    dataset, tasks, scenario, model = form["stream"].split(", ")
    about = (scenario, dataset, tasks.removesuffix(" tasks"), form["method"], model, form["metric"])
    return next((row.paper.mean for row in tables() if row.key == " ".join(about)), None)
