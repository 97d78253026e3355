"""Numbers that sentences quote, looked up in the runs.

`{accuracy of replay on mnist, 5 tasks, class-incremental, mlp}` becomes the mean over the seeds in per cent,
`{paper's accuracy of ...}` the published number, and `{accuracy of replay with lr 0.1 on ...}` that of a changed setting.
A number that no run has becomes a dash.
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


def with_numbers(explanations: Explanations, samples: Sequence[Sample]) -> Explanations:
    """The explanations with the quoted numbers."""

    def entry(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {k: insert_numbers(v, samples) if isinstance(v, str) else v for k, v in fields.items()}

    return replace(
        explanations,
        differs=tuple(map(entry, explanations.differs)),
        order=tuple(map(entry, explanations.order)),
        surprises=tuple(map(entry, explanations.surprises)),
        notes=entry(explanations.notes),
    )


def insert_numbers(text: str, samples: Sequence[Sample]) -> str:
    """The text with the quoted numbers."""
    return QUOTE.sub(lambda match: _value(match[1], samples), text)


def _value(quote: str, samples: Sequence[Sample]) -> str:
    form = FORM.fullmatch(" ".join(quote.split()))
    if form is None:
        raise UserError(
            f"'{quote}' names no number; write: METRIC of METHOD [with OPTION VALUE, ...] on STREAM."
        )
    value = _published(form) if form["paper"] else _measured(form, samples)
    if value is None or metric(form["metric"]).certified:
        return rate_text(value, upwards=True)
    return rounded_text(value, 1, "100")


def _measured(form: re.Match[str], samples: Sequence[Sample]) -> float | None:
    changes = dict(change.split(" ", 1) for change in (form["changes"] or "").split(", ") if change)
    head = changes.pop("head", None)
    for sample in samples:
        same_changes = {key: str(value) for key, value in sample.changes} == changes
        same_head = sample.stream.model == head if head else sample.stream.model in USUAL_MODELS
        if (
            same_changes
            and same_head
            and (sample.stream.name, sample.method) == (form["stream"], form["method"])
        ):
            value = sample.spread(form["metric"])
            return value.mean if value else None
    return None


def _published(form: re.Match[str]) -> float | None:
    dataset, tasks, scenario, model = form["stream"].split(", ")
    key = (scenario, dataset, tasks.removesuffix(" tasks"), form["method"], model, form["metric"])
    return next((row.paper.mean for row in tables() if row.key == " ".join(key)), None)
