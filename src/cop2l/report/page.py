"""The report: one page that needs no network, from run directories alone."""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cop2l import __version__
from cop2l.methods import REMARKS
from cop2l.report import sentences, theme
from cop2l.report.comparison import column_names, compare, quoted, written, written_sd
from cop2l.report.figures import FIGURES
from cop2l.report.figures.figure import Figure, interactive, vega_lite
from cop2l.report.figures.learning import against
from cop2l.report.groups import Group, by_benchmark, repeated
from cop2l.report.metric import METRICS
from cop2l.report.published import Published, Row, sources
from cop2l.report.runs import Found

SUMMARY = {
    "accuracy": "average accuracy (%)",
    "forgetting": "forgetting (%)",
    "plasticity": "plasticity (%)",
    "bound": "claimed bound, mean (%)",
    "worst-bound": "claimed bound, worst task (%)",
    "holdout": "hold-out bound, mean (%)",
    "trained-freely": "trained freely",
    "certified-on": "certified on",
    "picked": "picked",
    "seconds": "time (s)",
}
"""The metrics of the summary, each with the heading of its column."""
PAGE_FIGURES = ("bounds", "progress", "matrix", "compression", "iterations", "classes", "plasticity")
MOST_ROWS = 600
MOST_CLAIMS = 3
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
    certified = [group.runs[0] for group in groups if group.runs[0].certificate and group.kind != "holdout"]
    return _environment().get_template("page.html").render(
        title=title or sentences.title(groups),
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
        legend=_legend(groups, shown),
        commands=[f"cop2l verify {shlex.quote(str(run.folder))}" for run in certified[:MOST_COMMANDS]],
        rows=list(_runs(groups)),
        configurations=list(_configurations(groups)),
        environments=list(_environments(found)),
    )  # fmt: skip


def _stream(anchor: str, name: str, groups: Sequence[Group], beside: Sequence[Row]) -> dict[str, Any]:
    """What the page shows of one stream."""
    tables = [table for metric in SUMMARY if (table := compare(groups, METRICS[metric], beside)).filled]
    return {
        "anchor": anchor,
        "name": name,
        "benchmark": groups[0].benchmark,
        "groups": sorted(groups, key=lambda group: group.order),
        "tables": tables,
        "header": [SUMMARY[table.metric.name] for table in tables],
        "claims": [(group.label, claim) for group in groups if (claim := sentences.claim_in_context(group))],
        "figures": list(_figures(groups)),
    }


def _figures(groups: Sequence[Group]) -> Iterator[Figure]:
    for key in dict.fromkeys(key for group in groups for key, _ in group.setting):
        for metric in ("accuracy", "bound"):
            values = {group.runs[0].settings.get(key) for group in groups}
            if len(values) > 2 and (figure := against(groups, key, METRICS[metric])):
                yield figure
    for name in PAGE_FIGURES:
        if figure := FIGURES[name](groups):
            yield figure


def _not_valid(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The groups whose certificates are not valid, by reason."""
    against: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        if group.not_valid:
            against.setdefault((group.benchmark.stream, " ".join(group.not_valid)), []).append(group.label)
    return [(f"{sentences.listing(labels)} on {s}", reasons) for (s, reasons), labels in against.items()]


def _legend(groups: Sequence[Group], shown: Sequence[Published]) -> str:
    several = max(len(group.runs) for group in groups) > 1
    said = ["Mean ± sample standard deviation over the seeds." if several else "One seed."]
    said.append("Bold: the best of a column among the methods of a stream.")
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
            f"{sentences.count(len(machines), 'run')}: {', '.join(known) or 'nothing recorded'}",
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
        "interactive": interactive,
        "most_claims": MOST_CLAIMS,
        "most_rows": MOST_ROWS,
        "not_valid": _not_valid,
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
