"""The report as one HTML page that needs no network, from run directories alone."""

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
from cop2l.experiments.records import CERTIFICATES
from cop2l.kernel.form import ASSUMPTIONS
from cop2l.methods import REMARKS
from cop2l.report import sentences, theme
from cop2l.report.certified import LEVEL, certifying_groups, families, task_rows
from cop2l.report.comparison import Table, column_names, tables
from cop2l.report.figures import FIGURES
from cop2l.report.figures.figure import Figure, interactive, rate_text, vega_lite
from cop2l.report.figures.learning import against
from cop2l.report.formats import TIES
from cop2l.report.groups import Group, by_benchmark, not_valid, repeated
from cop2l.report.metric import METRICS
from cop2l.report.runs import RunSet
from cop2l.text import count, interval, listing

RESULTS = ("worst-bound", "bound", "average", "lost", "accuracy", "forgetting", "plasticity")
COSTS = ("learned-from", "certified-on", "picked", "seconds")
"""The metrics of the comparison: what is certified, then what was measured, then the costs."""
PAGE_FIGURES = ("bounds", "progress", "matrix", "classes", "plasticity")
MOST_ROWS = 600
MOST_TASKS = 12
MOST_IN_SIGHT = 3
"""How many tables of tasks, and how many commands, are not folded."""


def page(run_set: RunSet, over: Sequence[str] = ("seed",), title: str | None = None) -> str:
    """The whole page; `over` names the configuration keys that are averaged over."""
    runs, learners = run_set.runs, run_set.learners
    by_stream = by_benchmark(runs, over)
    groups = [group for stream_groups in by_stream for group in stream_groups]
    names, _ = column_names([stream_groups[0].benchmark for stream_groups in by_stream])
    comparisons = [tables(stream_groups, [*RESULTS, *COSTS])[0] for stream_groups in by_stream]
    code = resources.files("cop2l.report") / "templates" / "page.js"
    bundle, script = _bundle(), Markup(code.read_text(encoding="utf-8").strip())  # noqa: S704 (a file of the package)
    remarks = dict.fromkeys(REMARKS[key] for run in runs if (key := (run.method, run.model)) in REMARKS)
    claims = [claim for group in groups if (claim := _claim(group))]
    claiming = [claim["group"] for claim in claims]
    certifying = certifying_groups(groups) or claiming
    result = sentences.headline(groups) if groups or not learners else "Saved learners"
    issued = [run for group in certifying for run in group.runs if (run.folder / CERTIFICATES).exists()]
    commands = [verify_command(run.folder, run.recipe) for run in issued]
    commands += [verify_command(learner.folder, {}) for learner in learners]
    return _environment().get_template("page.html").render(
        title=title or result,
        result=result if title else "",
        bundle=bundle,
        script=script,
        hashes=[_digest(text) for text in (bundle, script) if text],
        lead=sentences.opening(runs, groups),
        groups=groups,
        not_valid=not_valid(groups)
        + [(x.folder, " ".join(reasons)) for x in learners if (reasons := x.certificate.not_valid)],
        claiming=claiming,
        claims=[claim for claim in claims if claim["group"] in certifying],
        other_claims=[claim for claim in claims if claim["group"] not in certifying],
        commands=commands,
        tables=comparisons,
        figures=[(name, list(_figures(own))) for name, own in zip(names, by_stream, strict=True)],
        left_out=[left.sentence for left in run_set.left_out],
        notes=[*repeated(groups), *remarks, *sentences.all_exceeded(groups)],
        legend=_legend(groups, comparisons),
        learners=[(x.folder, Markup(x.certificate._repr_html_())) for x in learners],  # noqa: S704
        rows=list(_runs(groups)),
        configurations=[_configuration(group) for group in groups],
    )  # fmt: skip


def _claim(group: Group) -> dict[str, Any] | None:
    """The claim of a group: its sentences, the rows of its tasks, and the other families; None if there is none."""
    if not (claim_sentences := sentences.claim(group)):
        return None
    rows = task_rows(group)
    ends = [row.interval[1] if row.interval else row.measured for row in rows]
    return {
        "group": group,
        "sentences": claim_sentences,
        "rows": rows,
        "scale": min(1.0, 1.08 * max([*(row.at_most for row in rows), *ends], default=1.0)) or 1.0,
        "families": [family for family in families(group) if family.parts],
    }


def _figures(groups: Sequence[Group]) -> Iterator[Figure]:
    for key in dict.fromkeys(key for group in groups for key, _ in group.setting):
        values = [group.runs[0].settings.get(key) for group in groups]
        if len({value for value in values if isinstance(value, int | float)}) > 2:
            yield from filter(
                None, (against(groups, key, METRICS[metric]) for metric in ("accuracy", "bound"))
            )
    for name in PAGE_FIGURES:
        single_dots = name == "plasticity" and len(groups) == 1  # nothing to compare them with
        if not single_dots and (figure := FIGURES[name](groups)):
            yield figure


def _legend(groups: Sequence[Group], comparisons: Sequence[Table]) -> str:
    several_seeds = max((len(group.runs) for group in groups), default=1) > 1
    legend = ["Mean ± sample standard deviation over the seeds." if several_seeds else "One seed."]
    cells = [cell for table in comparisons for cell in table.filled]
    if any(cell.best for cell in cells):
        legend.append(TIES)
        if failed := dict.fromkeys(cell.group.label for cell in cells if not cell.learned):
            legend.append(f"Did not learn, and so is never the best: {listing(list(failed))}.")
    if any(group.not_valid for group in groups):
        legend.append("†: not a guarantee, for the reason above; never the best.")
    return " ".join([*legend, "Bounds are rounded upwards."])


def _runs(groups: Sequence[Group]) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        for run in group.runs:
            yield (
                Markup("<code>{}</code>").format(run.folder),
                group.label,
                run.stream,
                run.seed,
                METRICS["accuracy"].text(run.accuracy),
                METRICS["seconds"].text(run.seconds),
                "not valid" if run.not_valid else run.kind or "none",
            )


def _configuration(group: Group) -> tuple[str, list[tuple[str, str]]]:
    """A heading, and the settings and the environment of a group with all their values; without those that no run has."""
    seeds = f"seed{'s' * (len(group.runs) > 1)} {', '.join(str(run.seed) for run in group.runs)}"
    records = [
        run.settings | {f"environment: {key}": value for key, value in run.environment.items()}
        for run in group.runs
    ]
    keys = dict.fromkeys(key for record in records for key, value in record.items() if value is not None)
    texts = [
        dict.fromkeys(json.dumps(record.get(key), default=str, ensure_ascii=False) for record in records)
        for key in keys
    ]
    heading = f"{group.label} on {group.benchmark.stream}, {seeds}"
    return heading, [(key, "; ".join(values)) for key, values in zip(keys, texts, strict=True)]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("cop2l.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals |= {
        "version": __version__,
        "assumptions": ASSUMPTIONS,
        "count": count,
        "interactive": interactive,
        "interval": interval,
        "most_tasks": MOST_TASKS,
        "most_in_sight": MOST_IN_SIGHT,
        "level": f"{100 * LEVEL:g}",
        "rate_text": rate_text,
        "most_rows": MOST_ROWS,
        "parts_of": lambda family, group: [
            (group.runs[0].names.with_names(part.about), part.bound, part.measured.replace("-", "−") or "–")
            for part in family.parts
        ],
        "theme": theme,
        "sentences": sentences,
    }
    return environment


@cache
def _bundle() -> Markup | None:
    """Vega, Vega-Lite and their embedding as one script; None without the extra `report`."""
    try:
        import vl_convert

        version = vega_lite()
    except ImportError:
        return None
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return Markup(bundle.replace("</script", "<\\/script"))  # noqa: S704 (a file of the library)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
