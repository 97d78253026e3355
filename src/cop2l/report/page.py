"""The report: one page that needs no network, from run directories alone."""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cop2l import __version__
from cop2l.audit.flags import verify_command
from cop2l.kernel.form import ASSUMPTIONS
from cop2l.methods import REMARKS
from cop2l.report import sentences, theme
from cop2l.report.certified import LEVEL, certifying_groups, families, task_rows
from cop2l.report.comparison import Table, column_names, metric_text, published_text, tables, written_sd
from cop2l.report.figures import FIGURES
from cop2l.report.figures.figure import Figure, interactive, rate_text, vega_lite
from cop2l.report.figures.learning import against
from cop2l.report.formats import TIES
from cop2l.report.groups import Group, by_benchmark, not_valid, repeated
from cop2l.report.metric import METRICS
from cop2l.report.published import Row, sources
from cop2l.report.runs import Found
from cop2l.text import count, interval, listing

RESULTS = ("worst-bound", "bound", "average", "lost", "accuracy", "forgetting", "plasticity")
COSTS = ("prior-examples", "certified-on", "picked", "seconds")
"""The metrics of the comparison: what is certified first, then what was measured, then what it took."""
PAGE_FIGURES = ("bounds", "progress", "matrix", "classes", "plasticity")
MOST_ROWS = 600
MOST_TASKS = 12
MOST_IN_SIGHT = 3
"""So many tables of tasks, and commands, are in sight; the others are folded."""


def page(
    found: Found, over: Sequence[str] = ("seed",), title: str | None = None, beside: Sequence[Row] = ()
) -> str:
    """The whole page; `over` names the configuration keys that are averaged over, `beside` holds published numbers."""
    by_stream = by_benchmark(found.runs, over)
    groups = [group for own in by_stream for group in own]
    names, _ = column_names([own[0].benchmark for own in by_stream])
    compared = [tables(own, [*RESULTS, *COSTS], beside)[0] for own in by_stream]
    bundle, script = _bundle(), Markup(_text("page.js"))  # noqa: S704 (a file of ours)
    remarks = dict.fromkeys(REMARKS[key] for run in found.runs if (key := (run.method, run.model)) in REMARKS)
    claimed = [claimed for group in groups if (claimed := _claimed(group))]
    first = certifying_groups(groups) or [one["group"] for one in claimed]
    result = sentences.headline(groups) if groups or not found.learners else "Saved learners"
    commands = [verify_command(run.folder, run.recipe) for g in first for run in g.runs if run.certificate]
    commands += [verify_command(one.folder, {}) for one in found.learners]
    return _environment().get_template("page.html").render(
        title=title or result,
        result=result if title else "",
        version=__version__,
        bundle=bundle,
        script=script,
        hashes=[_digest(text) for text in (bundle, script) if text],
        lead=sentences.opening(found.runs, groups),
        groups=groups,
        doubtful=not_valid(groups)
        + [(one.folder, " ".join(why)) for one in found.learners if (why := one.certificate.not_valid)],
        claimed=[one for one in claimed if one["group"] in first],
        others=[one for one in claimed if one["group"] not in first],
        commands=commands,
        tables=compared,
        figures=[(name, list(_figures(own))) for name, own in zip(names, by_stream, strict=True)],
        left_out=[left.sentence for left in found.left_out],
        notes=[*repeated(groups), *remarks, *sentences.all_exceeded(groups)],
        legend=_legend(groups, compared),
        learners=[(one.folder, Markup(one.certificate._repr_html_())) for one in found.learners],  # noqa: S704
        rows=list(_runs(groups)),
        configurations=[_configuration(group) for group in groups],
    )  # fmt: skip


def _claimed(group: Group) -> dict[str, Any] | None:
    """What a group certifies: in sentences, task by task, and the other families; None if nothing."""
    if not (claimed := sentences.claim(group)):
        return None
    rows = task_rows(group)
    ends = [row.interval[1] if row.interval else row.measured for row in rows]
    return {
        "group": group,
        "claimed": claimed,
        "rows": rows,
        "scale": min(1.0, 1.08 * max([*(row.at_most for row in rows), *ends], default=1.0)) or 1.0,
        "families": [claim for claim in families(group) if claim.parts],
    }


def _figures(groups: Sequence[Group]) -> Iterator[Figure]:
    for key in dict.fromkeys(key for group in groups for key, _ in group.setting):
        values = [group.runs[0].settings.get(key) for group in groups]
        if len({value for value in values if isinstance(value, int | float)}) > 2:
            yield from filter(
                None, (against(groups, key, METRICS[metric]) for metric in ("accuracy", "bound"))
            )
    for name in PAGE_FIGURES:
        alone = name == "plasticity" and len(groups) == 1  # the dots of one method, beside nothing
        if not alone and (figure := FIGURES[name](groups)):
            yield figure


def _legend(groups: Sequence[Group], compared: Sequence[Table]) -> str:
    several = max((len(group.runs) for group in groups), default=1) > 1
    said = ["Mean ± sample standard deviation over the seeds." if several else "One seed."]
    cells = [cell for table in compared for cell in table.filled]
    if any(cell.best for cell in cells):
        said.append(TIES)
        if idle := dict.fromkeys(cell.group.label for cell in cells if not cell.learned):
            said.append(f"Did not learn, and so is never the best: {listing(list(idle))}.")
    if shown := [cell.published for cell in cells if cell.published]:
        said.append(f"“published”: from {sources(shown) or 'the file that was given'}.")
    if any(group.not_valid for group in groups):
        said.append("†: not a guarantee, for the reason given above; never the best.")
    return " ".join([*said, "Bounds are rounded upwards."])


def _runs(groups: Sequence[Group]) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        for run in group.runs:
            yield (
                Markup("<code>{}</code>").format(run.folder),
                group.label,
                run.stream,
                run.seed,
                metric_text(run.accuracy, METRICS["accuracy"]),
                metric_text(run.seconds, METRICS["seconds"]),
                "not valid" if run.not_valid else run.kind or "none",
            )


def _configuration(group: Group) -> tuple[str, list[tuple[str, str]]]:
    """A heading, and the settings and the environment of a group; where its runs differ, all the values."""
    seeds = ", ".join(str(run.seed) for run in group.runs)
    records = [
        run.settings | {f"environment: {key}": value for key, value in run.environment.items()}
        for run in group.runs
    ]
    keys = dict.fromkeys(key for record in records for key in record)
    texts = [
        dict.fromkeys(json.dumps(record.get(key), default=str, ensure_ascii=False) for record in records)
        for key in keys
    ]
    heading = f"{group.label} on {group.benchmark.stream}, seeds {seeds}"
    return heading, [(key, "; ".join(own)) for key, own in zip(keys, texts, strict=True)]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("cop2l.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.globals |= {
        "assumptions": ASSUMPTIONS,
        "count": count,
        "interactive": interactive,
        "interval": interval,
        "most_tasks": MOST_TASKS,
        "most_in_sight": MOST_IN_SIGHT,
        "level": f"{100 * LEVEL:g}",
        "rate_text": rate_text,
        "most_rows": MOST_ROWS,
        "parts_of": lambda claim, group: [
            (group.runs[0].names.with_names(part.about), part.bound, part.measured.replace("-", "−") or "–")
            for part in claim.parts
        ],
        "quoted": published_text,
        "theme": theme,
        "sentences": sentences,
        "written": metric_text,
        "written_sd": written_sd,
    }
    return made


@cache
def _bundle() -> Markup | None:
    """Vega, Vega-Lite and their embedding as one script; None without the extra `report`."""
    try:
        import vl_convert

        version = vega_lite()
    except ImportError:
        return None
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return Markup(bundle.replace("</script", "<\\/script"))  # noqa: S704 (a library's file)


def _text(name: str) -> str:
    return (resources.files("cop2l.report") / "templates" / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
