"""The report: one page that needs no network, from run directories alone."""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from cop2l import __version__
from cop2l.errors import missing_extra
from cop2l.report import theme, words
from cop2l.report.comparison import Cell, Comparison, column_names, compare, quoted, written, written_sd
from cop2l.report.figures import FIGURES
from cop2l.report.figures.figure import Figure, Key, Panel, interactive, vega_lite
from cop2l.report.figures.learning import against
from cop2l.report.groups import Group, Place, by_place, repeated
from cop2l.report.markup import Child, Markup, join, table, tag
from cop2l.report.metric import METRICS, Metric
from cop2l.report.published import Published, Row, sources
from cop2l.report.runs import Found, Run

SUMMARY_METRICS = ("accuracy", "forgetting", "plasticity", "bound", "worst-bound", "holdout", "seconds")
PAGE_FIGURES = ("bounds", "progress", "matrix", "compression", "iterations", "classes", "plasticity")
MOST_ROWS = 600
MOST_CLAIMS = 3


def page(
    found: Found, over: Sequence[str] = ("seed",), title: str | None = None, beside: Sequence[Row] = ()
) -> str:
    """The whole page; `over` names the configuration keys that are averaged over, `beside` holds published numbers."""
    by_stream = by_place(found.runs, over)
    groups = [group for own in by_stream for group in own]
    title = title or words.title(groups)
    bundle, script = _bundle(), _text("page.js")
    places = [own[0].place for own in by_stream]
    names, _ = column_names(places)
    streams = [
        (f"stream-{i}", name, place, own)
        for i, (name, place, own) in enumerate(zip(names, places, by_stream, strict=True), 1)
    ]
    sections = [
        ("summary", "Summary", _summary(streams, beside)),
        *((anchor, name, _stream(place, own)) for anchor, name, place, own in streams),
        ("certificates", "Certificates", _certificates(groups)),
        ("verify", "Verify", _verify(groups)),
        ("runs", "Runs", _runs(found.runs, groups)),
    ]
    body = [
        tag("a", "Skip to the summary", href="#summary", class_="skip"),
        tag("header", _header(title, found, groups)),
        tag(
            "nav",
            tag("ul", [tag("li", tag("a", n, href=f"#{a}")) for a, n, _ in sections]),
            aria_label="Sections",
        ),
        tag("main", [_section(anchor, name, content) for anchor, name, content in sections]),
        tag(
            "footer",
            f"Made by cop2l {__version__} from run directories. This page loads nothing from the network.",
        ),
    ]
    return Template(_text("page.html")).substitute(
        title=join(title),
        version=__version__,
        hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (bundle, script)),
        style=Template(_text("page.css")).substitute(
            light=theme.variables(dark=False), dark=theme.variables(dark=True)
        ),
        body=join(body),
        bundle=bundle,
        script=script,
    )


def _header(title: str, found: Found, groups: Sequence[Group]) -> Iterator[Child]:
    yield tag("p", "cop2l report", class_="kicker")
    yield tag("h1", title)
    methods = list(dict.fromkeys(group.method for group in groups))
    count = f"{len(found.runs)} finished run{'s' if len(found.runs) != 1 else ''}"
    deltas = sorted({run.delta for run in found.runs if run.delta is not None})
    certified = f" Certificates at δ = {words.listing([f'{d:g}' for d in deltas])}." if deltas else ""
    of = f" of {words.listing(methods)}" if methods else ""
    yield tag("p", f"{count}{of}.{certified}", class_="lead")
    for group_list, reasons in _not_valid(groups):
        yield _alarm(
            f"Certificates not valid: {group_list}.",
            f"{reasons} The bounds are shown for comparison; they guarantee nothing.",
        )
    if found.left_out:
        many = len(found.left_out)
        head = "1 run directory is left out." if many == 1 else f"{many} run directories are left out."
        yield _notice(head, [left.sentence for left in found.left_out])
    notes = [*repeated(groups), *(note for run in found.runs for note in run.notes)]
    if notes:
        yield _notice("To know about these runs.", notes)


def _not_valid(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The groups whose certificates are not valid, by reason."""
    against: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        if group.not_valid:
            against.setdefault((group.place.stream, " ".join(group.not_valid)), []).append(group.label)
    return [(f"{words.listing(labels)} on {s}", reasons) for (s, reasons), labels in against.items()]


def _alarm(head: str, sentence: str) -> Markup:
    return tag("div", tag("p", tag("strong", head), f" {sentence}"), class_="notice alarm", role="note")


def _notice(head: str, sentences: Sequence[str]) -> Markup:
    if len(sentences) == 1:
        content: Child = tag("p", tag("strong", head), f" {sentences[0]}")
    else:
        content = [tag("p", tag("strong", head)), tag("ul", [tag("li", sentence) for sentence in sentences])]
    return tag("div", content, class_="notice", role="note")


def _section(anchor: str, name: str, content: Child) -> Markup:
    return tag(
        "section",
        tag("h2", name, id=f"{anchor}-title"),
        content,
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def _summary(
    streams: Sequence[tuple[str, str, Place, list[Group]]], beside: Sequence[Row]
) -> Iterator[Child]:
    shown: list[Published] = []
    for anchor, name, place, groups in streams:
        if len(streams) > 1:
            yield tag("h3", tag("a", name, href=f"#{anchor}"))
        yield tag("p", f"{place.scenario.capitalize()}, {place.tasks} tasks, {place.model}.", class_="quiet")
        compared = [compare(groups, METRICS[metric], beside) for metric in SUMMARY_METRICS]
        compared = [comparison for comparison in compared if comparison.filled]
        shown += [cell.published for comparison in compared for cell in comparison.filled if cell.published]
        yield _summary_table(name, groups, compared)
        claims = [claim for group in groups if (claim := _claim(group))]
        if len(claims) > MOST_CLAIMS:
            yield tag("details", tag("summary", "What these runs certify, in words"), claims)
        else:
            yield claims
    yield tag("p", _legend_words([group for *_, own in streams for group in own], shown), class_="quiet")


def _claim(group: Group) -> Markup | None:
    certified = words.claim(group)
    if not certified or group.kind == "holdout":
        return None
    more = [sentence for sentence in (words.against_paper(group), words.against_holdout(group)) if sentence]
    return tag("p", tag("strong", group.label), ". ", " ".join([certified, *more]))


def _legend_words(groups: Sequence[Group], shown: Sequence[Published]) -> str:
    several = max(len(group.runs) for group in groups) > 1
    sentences = ["Mean ± sample standard deviation over the seeds." if several else "One seed."]
    sentences.append("Bold: the best of a column among the methods of a stream.")
    if shown:
        where = sources(shown)
        sentences.append(
            f"“published”: from {where}." if where else "“published”: from the file that was given."
        )
    if any(group.not_valid for group in groups):
        sentences.append("†: not a guarantee, for the reason given above; never the best.")
    sentences.append(
        "Bounds are rounded upwards; the claimed one was named in advance, and holds for its own run alone."
    )
    return " ".join(sentences)


def _summary_table(name: str, groups: Sequence[Group], compared: Sequence[Comparison]) -> Markup:
    by_label = [{cell.group.label: cell for cell in comparison.filled} for comparison in compared]
    titles = {
        "bound": "claimed bound, mean",
        "worst-bound": "claimed bound, worst task",
        "holdout": "hold-out bound, mean",
        "accuracy": "average accuracy",
    }
    units = {"%": " (%)", "s": " (s)"}
    header = [titles.get(c.metric.name, c.metric.title) + units[c.metric.unit] for c in compared]
    rows = [
        [
            group.label,
            *(
                _summary_cell(cells.get(group.label), c.metric)
                for c, cells in zip(compared, by_label, strict=True)
            ),
            str(len(group.runs)),
        ]
        for group in sorted(groups, key=lambda g: g.order)
    ]
    return table(["method", *header, "seeds"], rows, label=f"Summary of {name}")


def _summary_cell(cell: Cell | None, metric: Metric) -> Child:
    if cell is None:
        return "–"
    minus = written(cell.ours.mean, metric).replace("-", "−")
    mean = tag("span", minus, class_="best" if cell.best else None)
    sd = tag("span", written_sd(cell.ours.sd, metric), class_="sd")
    mark = None if cell.valid else tag("span", "†", class_="mark", title="not valid")
    kind = tag("span", cell.group.kind or "", class_="beneath") if metric.name == "bound" else None
    published = None
    if cell.published:
        published = tag("span", f"published {quoted(cell.published, metric)}", class_="beneath")
    return [mean, sd, mark, kind, published]


def _stream(place: Place, groups: Sequence[Group]) -> Iterator[Child]:
    yield tag("p", f"{place.scenario.capitalize()}, {place.tasks} tasks, {place.model}.", class_="quiet")
    for group_list, reasons in _not_valid(groups):
        yield _alarm(
            f"Not valid: {group_list}.", f"{reasons} The bounds below are no guarantee for these runs."
        )
    for figure in _figures(groups):
        yield _figure(figure)


def _figures(groups: Sequence[Group]) -> Iterator[Figure]:
    for key in dict.fromkeys(key for group in groups for key, _ in group.setting):
        for metric in ("accuracy", "bound"):
            values = {group.runs[0].config.get(key) for group in groups}
            if len(values) > 2 and (figure := against(groups, key, METRICS[metric])):
                yield figure
    for name in PAGE_FIGURES:
        if figure := FIGURES[name](groups):
            yield figure


def _figure(figure: Figure) -> Markup:
    layout = "single" if len(figure.panels) == 1 else "narrow" if figure.narrow else ""
    rows = figure.rows[:MOST_ROWS]
    cut = len(figure.rows) - len(rows)
    numbers = table(figure.header, rows, label=f"Numbers behind the figure: {figure.title}")
    more = tag("p", f"{cut} further rows are left out.", class_="quiet") if cut else None
    return join(
        [
            tag("h3", figure.title),
            tag(
                "figure",
                tag("figcaption", figure.caption),
                tag("ul", [_legend_entry(key) for key in figure.keys], class_="legend", aria_label="Legend"),
                tag("div", [_panel(panel) for panel in figure.panels], class_=f"panels {layout}".strip()),
                tag("details", tag("summary", "Numbers behind this figure"), numbers, more),
                data_figure=figure.name,
            ),
        ]
    )


def _panel(panel: Panel) -> Markup:
    # "<" inside JSON would let a string end the script element.
    description = Markup(json.dumps(interactive(panel), separators=(",", ":")).replace("<", "\\u003c"))
    return tag(
        "div",
        tag("h4", panel.title) if panel.title else None,
        tag("div", class_="chart", role="img", aria_label=panel.description),
        tag("script", description, type="application/json"),
        class_="panel",
    )


def _legend_entry(key: Key) -> Markup:
    colour = theme.colour(key.colour)
    if key.mark == "line":
        dash = " ".join(map(str, key.dash)) if key.dash != (1, 0) else None
        shape = tag(
            "line", x1=0, y1=6, x2=24, y2=6, style=f"stroke:{colour}", stroke_width=2, stroke_dasharray=dash
        )
    elif key.mark == "dot":
        shape = tag("circle", cx=12, cy=6, r=5, style=f"fill:{colour}")
    else:
        shape = tag(
            "rect", x=6, y=0, width=12, height=12, style=f"fill:{colour};fill-opacity:{key.opacity:.2f}"
        )
    return tag("li", tag("svg", shape, viewBox="0 0 24 12", aria_hidden="true"), key.label)


def _certificates(groups: Sequence[Group]) -> Iterator[Child]:
    yield tag(
        "div",
        tag("div", tag("h3", "What a certificate says"), _items(words.SAYS)),
        tag("div", tag("h3", "What it does not say"), _items(words.DOES_NOT_SAY)),
        class_="columns",
    )
    yield tag("h3", "What it assumes")
    yield _items(words.ASSUMPTIONS)
    yield tag("p", "Where one of these is known to fail, the certificate carries “not valid” and the reason.")
    kinds = words.kinds(groups)
    if kinds:
        yield tag("h3", "The kinds of bounds on this page")
        yield table(["kind", "what it is"], kinds, label="Kinds of bounds", words=(0, 1))


def _items(sentences: Sequence[str]) -> Markup:
    return tag("ul", [tag("li", sentence) for sentence in sentences])


def _verify(groups: Sequence[Group]) -> Iterator[Child]:
    yield tag(
        "p",
        "Anyone who has a run directory can check its certificates: hashes, every bound recomputed from the counts,"
        " and, with the data at hand, the errors counted again and the model rebuilt bit for bit from the compression"
        " sets.",
    )
    runs = [group.runs[0] for group in groups if group.runs[0].certificate and group.kind != "holdout"]
    commands = "\n".join(f"cop2l verify {shlex.quote(str(run.folder))}" for run in runs[:8])
    if commands:
        yield tag("pre", tag("code", commands), tabindex=0)
    yield table(["exit code", "verdict"], words.VERDICTS, label="Exit codes of cop2l verify", words=(0, 1))
    yield tag(
        "p", tag("code", "cop2l show CERTIFICATE"), " prints one certificate with the terms of each bound."
    )


def _runs(runs: Sequence[Run], groups: Sequence[Group]) -> Iterator[Child]:
    rows = [
        [
            tag("code", str(run.folder)),
            group.label,
            run.stream,
            str(run.seed),
            written(run.accuracy, METRICS["accuracy"]),
            written(run.seconds, METRICS["seconds"]),
            "not valid" if run.not_valid else run.kind or "none",
        ]
        for group in groups
        for run in group.runs
    ]
    header = ["run directory", "method", "stream", "seed", "accuracy (%)", "time (s)", "claim"]
    yield table(header, rows, label="All finished runs", words=(0, 1, 2, 6))
    yield tag("h3", "Configurations")
    for group in groups:
        seeds = ", ".join(str(run.seed) for run in group.runs)
        summary = tag("summary", f"{group.label} on {group.place.stream}, seeds {seeds}")
        made = [{**run.config, **_descriptions(run.environment)} for run in group.runs]
        yield tag("details", summary, _settings(made, f"Configuration of {group.label}"))
    yield tag("h3", "Environments")
    environments: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        machine = {
            k: v for k, v in run.environment.items() if k != "command" and not isinstance(v, dict | list)
        }
        environments.setdefault(json.dumps(machine, sort_keys=True, default=str), []).append(machine)
    for machines in environments.values():
        count = f"{len(machines)} run{'s' if len(machines) != 1 else ''}"
        known = [f"{k} {v}" for k in ("device", "torch", "cpu") if (v := machines[0].get(k))]
        summary = tag("summary", f"{count}: {', '.join(known) or 'nothing recorded'}")
        yield tag("details", summary, _settings(machines[:1], "Environment"))


def _descriptions(environment: dict[str, Any]) -> dict[str, Any]:
    """How the stream and the model were made, which the environment records."""
    return {f"{key}, as made": environment[key] for key in ("stream", "model") if key in environment}


def _settings(records: Sequence[dict[str, Any]], label: str) -> Markup:
    """Keys and values; where runs differ, all the values."""
    keys = dict.fromkeys(key for record in records for key in record)
    rows = []
    for key in keys:
        values = dict.fromkeys(
            json.dumps(record.get(key), default=str, ensure_ascii=False) for record in records
        )
        rows.append(tag("tr", tag("th", key, scope="row"), tag("td", "; ".join(values), class_="setting")))
    return tag(
        "div", tag("table", tag("tbody", rows)), class_="scroll", tabindex=0, role="region", aria_label=label
    )


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and their embedding as one script."""
    try:
        import vl_convert
    except ImportError:
        raise missing_extra("vl-convert-python", "all", "The report page") from None
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite())
    return bundle.replace("</script", "<\\/script")


def _text(name: str) -> str:
    return (resources.files("cop2l.report") / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
