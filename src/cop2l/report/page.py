"""The report: one page that needs no network, from run directories alone."""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cop2l import __version__
from cop2l.audit.flags import command
from cop2l.kernel.form import ASSUMPTIONS
from cop2l.methods import REMARKS
from cop2l.report import families, sentences, theme
from cop2l.report.comparison import Comparison, column_names, compare, quoted, written, written_sd
from cop2l.report.figures import FIGURES
from cop2l.report.figures.figure import Figure, interactive, rate_text, vega_lite
from cop2l.report.figures.learning import against
from cop2l.report.groups import Group, by_benchmark, not_valid, repeated
from cop2l.report.headline import OURS, headline
from cop2l.report.metric import METRICS
from cop2l.report.published import Published, Row, sources
from cop2l.report.runs import Found
from cop2l.report.task_rows import LEVEL, task_rows
from cop2l.text import count, interval, listing

CERTIFIED, BESIDE, MEASURED = "certified: at most (%)", "not claimed (%)", "measured (%)"
RESULTS = {
    "worst-bound": (CERTIFIED, "error on every task"),
    "bound": (CERTIFIED, "the mean of these"),
    "average": (CERTIFIED, "error averaged over tasks"),
    "lost": (CERTIFIED, "lost since learned, averaged"),
    "holdout": (BESIDE, "hold-out bound, mean"),
    "accuracy": (MEASURED, "average accuracy"),
    "forgetting": (MEASURED, "forgetting"),
    "plasticity": (MEASURED, "plasticity"),
}
"""The metrics of the summary: what is certified first; each with the two headings of its column."""
COSTS = {
    "prior-examples": "prior examples",
    "certified-on": "certified on",
    "picked": "picked",
    "seconds": "time (s)",
}
"""What that took."""
PAGE_FIGURES = ("bounds", "progress", "matrix", "iterations", "classes", "plasticity")
MOST_ROWS = 600
MOST_TASKS = 12
MOST_LISTED = 9
MOST_COMMANDS = 8


def page(
    found: Found, over: Sequence[str] = ("seed",), title: str | None = None, beside: Sequence[Row] = ()
) -> str:
    """The whole page; `over` names the configuration keys that are averaged over, `beside` holds published numbers."""
    by_stream = by_benchmark(found.runs, over)
    groups = [group for own in by_stream for group in own]
    names, _ = column_names([own[0].benchmark for own in by_stream])
    streams = [
        _stream(f"stream-{i}", name, own, beside)
        for i, (name, own) in enumerate(zip(names, by_stream, strict=True), 1)
    ]
    tables = [table for stream in streams for table in stream["tables"]]
    shown = [cell.published for table in tables for cell in table.filled if cell.published]
    bundle, script = _bundle(), Markup(_text("page.js"))  # noqa: S704 (a file of ours)
    remarks = dict.fromkeys(REMARKS[key] for run in found.runs if (key := (run.method, run.model)) in REMARKS)
    certified = [
        group for group in groups if group.runs[0].certificate and not group.not_valid and group.kind
    ]
    certified.sort(key=lambda group: group.kind == "holdout")
    result = headline(groups) if groups or not found.learners else "Saved learners"
    commands = [command(group.runs[0].folder, group.runs[0].recipe) for group in certified[:MOST_COMMANDS]]
    commands += [command(one.folder, {}) for one in found.learners]
    return _environment().get_template("page.html").render(
        title=title or result,
        result=result if title else "",
        version=__version__,
        bundle=bundle,
        script=script,
        hashes=[_digest(text) for text in (bundle, script)] if bundle else [],
        lead=sentences.lead(found.runs, groups),
        groups=groups,
        streams=streams,
        left_out=[left.sentence for left in found.left_out],
        notes=[
            *repeated(groups),
            *remarks,
            *sentences.beside_claims(groups),
            *(note for run in found.runs for note in run.notes),
        ],
        legend=_legend(groups, tables, shown),
        commands=commands,
        learners=[(one.folder, Markup(one.certificate._repr_html_())) for one in found.learners],  # noqa: S704
        rows=list(_runs(groups)),
        configurations=list(_configurations(groups)),
        environments=list(_environments(found)),
    )  # fmt: skip


def _stream(anchor: str, name: str, groups: Sequence[Group], beside: Sequence[Row]) -> dict[str, Any]:
    """What the page shows of one stream."""
    others = [
        group for group in groups if group.kind != "holdout"
    ]  # of the rest the hold-out bound is the claim
    made = [compare(others if m == "holdout" else groups, METRICS[m], beside) for m in RESULTS]
    results = [table for table in made if table.filled]
    if groups[0].benchmark.tasks == 1:
        results = [table for table in results if table.metric.name not in ("bound", "plasticity")]
    costs = [table for metric in COSTS if (table := compare(groups, METRICS[metric], beside)).filled]
    heads = [RESULTS[table.metric.name] for table in results]
    return {
        "anchor": anchor,
        "name": name,
        "benchmark": groups[0].benchmark,
        "groups": sorted(groups, key=lambda group: group.order),
        "tables": results + costs,
        "results": results,
        "certified_head": CERTIFIED,
        "spans": [(over, len(list(own))) for over, own in groupby(head[0] for head in heads)],
        "heads": heads,
        "costs": costs,
        "cost_heads": [COSTS[table.metric.name] for table in costs],
        "certified": [claimed for group in groups if (claimed := _claimed(group))],
        "figures": list(_figures(groups)),
    }


def _claimed(group: Group) -> dict[str, Any] | None:
    """What a group certifies: the sentence, task by task, and the other families; None if nothing."""
    claim, others = sentences.claim(group), families.of_group(group)
    if not claim and not others:
        return None
    rows = task_rows(group)
    ends = [row.interval[1] if row.interval else row.measured for row in rows]
    return {
        "group": group,
        "claim": claim,
        "context": sentences.context(group) if claim else None,
        "rows": rows if claim else [],
        "scale": min(1.0, 1.08 * max([*(row.at_most for row in rows), *ends], default=1.0)) or 1.0,
        "who": others[0] if others else None,
        "families": others[1] if others else [],
        "folded": group.kind == "holdout" and group.method != OURS,
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


def _legend(groups: Sequence[Group], tables: Sequence[Comparison], shown: Sequence[Published]) -> str:
    several = max((len(group.runs) for group in groups), default=1) > 1
    said = ["Mean ± sample standard deviation over the seeds." if several else "One seed."]
    cells = [cell for table in tables for cell in table.filled]
    if any(cell.best for cell in cells):
        said.append("Bold: the best of a column on its stream, and what is level with it within its noise.")
        if idle := dict.fromkeys(cell.group.label for cell in cells if not cell.learned):
            said.append(f"Did not learn, and so is never the best: {listing(list(idle))}.")
    if shown:
        said.append(f"“published”: from {sources(shown) or 'the file that was given'}.")
    if any(group.not_valid for group in groups):
        said.append("†: not a guarantee, for the reason given above; never the best.")
    said.append(
        "Bounds are rounded upwards; the claimed one was named in advance, and holds for its own run alone."
    )
    return " ".join(said)


def _runs(groups: Sequence[Group]) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        for run in group.runs:
            yield (
                Markup("<code>{}</code>").format(run.folder),
                group.label,
                run.stream,
                run.seed,
                written(run.accuracy, METRICS["accuracy"]),
                written(run.seconds, METRICS["seconds"]),
                "not valid" if run.not_valid else run.kind or "none",
            )


def _configurations(groups: Sequence[Group]) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Of each group a heading, a label, and its settings: those of the configuration and how stream and model were made."""
    for group in groups:
        seeds = ", ".join(str(run.seed) for run in group.runs)
        made = [
            run.settings
            | {f"{k}, as made": run.environment[k] for k in ("stream", "model") if k in run.environment}
            for run in group.runs
        ]
        heading = f"{group.label} on {group.benchmark.stream}, seeds {seeds}"
        yield heading, f"Configuration of {group.label}", _settings(made)


def _environments(found: Found) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each environment once: how many runs were made in it, and what it is."""
    environments: dict[str, list[dict[str, Any]]] = {}
    for run in found.runs:
        machine = {
            k: v for k, v in run.environment.items() if k != "command" and not isinstance(v, dict | list)
        }
        environments.setdefault(json.dumps(machine, sort_keys=True, default=str), []).append(machine)
    for machines in environments.values():
        known = [f"{k} {v}" for k in ("device", "torch", "cpu") if (v := machines[0].get(k))]
        yield (
            f"{count(len(machines), 'run')}: {', '.join(known) or 'nothing recorded'}",
            _settings(machines[:1]),
        )


def _settings(records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Keys and values; where runs differ, all the values."""
    keys = dict.fromkeys(key for record in records for key in record)
    return [
        (
            key,
            "; ".join(
                dict.fromkeys(json.dumps(r.get(key), default=str, ensure_ascii=False) for r in records)
            ),
        )
        for key in keys
    ]


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
        "level": f"{100 * LEVEL:g}",
        "rate_text": rate_text,
        "most_listed": MOST_LISTED,
        "most_rows": MOST_ROWS,
        "not_valid": not_valid,
        "parts_of": lambda claim: [
            (part.about, part.bound, part.measured.replace("-", "−") or "–") for part in claim.parts
        ],
        "quoted": quoted,
        "theme": theme,
        "sentences": sentences,
        "written": written,
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
