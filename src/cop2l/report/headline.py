"""The page's title: the result of its runs in one line, which chooses among no certificates."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from cop2l.report import families
from cop2l.report.comparison import column_names
from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Group
from cop2l.report.metric import METRICS, bounds_of
from cop2l.report.sentences import unbroken
from cop2l.text import listing

OURS = "cop2l"
MOST_STREAMS = 3


class Result(NamedTuple):
    """What all the runs of a group certify, the largest of their bounds, and what it is about."""

    at_most: float
    about: str


def result(group: Group) -> Result | None:
    """What the runs of a group certify of the error; None if nothing, or if it is not valid."""
    if group.not_valid or not group.kind:
        return None
    bounds = [bounds_of(run, "bound") for run in group.runs]
    if all(bounds):
        tasks = group.benchmark.tasks
        return Result(
            max(b for own in bounds if own for b in own), "error on every task" if tasks > 1 else "error"
        )
    averages = [METRICS["average"].of(run) for run in group.runs]
    known = [average for average in averages if average is not None]
    about = f"error on average over the {group.benchmark.tasks} tasks"
    return Result(max(known), about) if len(known) == len(averages) else None


def measured(group: Group) -> float:
    """The mean test error over tasks and runs."""
    return 1 - fmean(run.accuracy for run in group.runs)


def headline(groups: Sequence[Group]) -> str:
    """The result: what is certified and what was measured, or that nothing is certified."""
    streams = [list(own) for _, own in groupby(groups, key=lambda group: group.benchmark)]
    if not streams:
        return "No finished run"
    if len(streams) == 1:
        return unbroken(_of_stream(streams[0]))
    if len(streams) <= MOST_STREAMS:
        return unbroken(_of_few(streams))
    certain = [found for own in streams if (found := _certain(own))]
    if not certain:
        return f"Nothing certified on {len(streams)} streams"
    at_most = [one.at_most for found in certain for _, one in found]
    errors = [measured(group) for found in certain for group, _ in found]
    where = f"{len(certain)} of {len(streams)}" if len(certain) < len(streams) else f"{len(streams)}"
    return unbroken(
        f"Certified on {where} streams: errors of at most {_span(at_most, upwards=True)} %;"
        f" measured {_span(errors)} % on average over tasks"
    )


def _of_few(streams: Sequence[Sequence[Group]]) -> str:
    """One part of the line for each stream."""
    names: Sequence[str] = [own[0].benchmark.stream for own in streams]
    if len(set(names)) < len(names):
        names, _ = column_names([own[0].benchmark for own in streams])
    stated, others = list[str](), list[str]()
    for name, own in zip(names, streams, strict=True):
        if certain := _certain(own):
            about = {one.about for _, one in certain}
            at_most = _span((one.at_most for _, one in certain), upwards=True)
            errors = _span(measured(group) for group, _ in certain)
            what = about.pop() if len(about) == 1 else "error"
            average = _average(own)
            where = f"{' of ' if what.endswith('task') else ' on '}{name} (measured {errors} %{average})"
            stated.append(f"at most {at_most} % {what}{where}")
        else:
            others.append(f"{_lower(_uncertain(own).split(':')[0].split(';')[0])} on {name}")
    parts = [f"Certified: {listing(stated)}"] * bool(stated) + others
    line = "; ".join(parts)
    return f"{line[0].upper()}{line[1:]}"


def _certain(groups: Sequence[Group]) -> list[tuple[Group, Result]]:
    """The groups that certify something, CoP2L's own if there are such: chosen by method, not by bound."""
    found = [(group, one) for group in groups if (one := result(group)) and one.at_most < 1]
    return [(group, one) for group, one in found if group.method == OURS] or found


def _of_stream(groups: Sequence[Group]) -> str:
    certain = _certain(groups)
    if not certain:
        return _uncertain(groups)
    about = {one.about for _, one in certain}
    at_most = _span((one.at_most for _, one in certain), upwards=True)
    return (
        f"Certified{_who([group for group, _ in certain], groups)}: at most {at_most} %"
        f" {about.pop() if len(about) == 1 else 'error'}{_worst([group for group, _ in certain])};"
        f" measured {_span(measured(group) for group, _ in certain)} %{_average(groups)}"
    )


def _worst(certain: Sequence[Group]) -> str:
    """Of which runs the bound is, if of several of one group."""
    seeds = len(certain[0].runs)
    return f" (the worst of {seeds} runs)" if len(certain) == 1 and seeds > 1 else ""


def _who(certain: Sequence[Group], groups: Sequence[Group]) -> str:
    """By whom, if others are there."""
    if len(groups) == 1:
        return ""
    if len(certain) == 1:
        return f" by {certain[0].label}"
    methods = {group.method for group in certain}
    return f" by {len(certain)} {f'settings of {methods.pop()}' if len(methods) == 1 else 'methods'}"


def _uncertain(groups: Sequence[Group]) -> str:
    errors = f"measured {_span(map(measured, groups))} % error{_average(groups)}"
    if any(one for group in groups if (one := result(group))):
        return f"Nothing certified: the bound reaches 100 %; {errors}"
    others = [found for group in groups if not group.not_valid and (found := families.of_group(group))]
    if others:  # of classes, groups or forgetting alone
        return f"Certified: {_lower(others[0][1][0].sentence.rstrip('.'))}"
    if any(group.not_valid for group in groups):
        return f"Not valid: no certificate here is a guarantee; {errors}"
    return f"Nothing certified; {errors}"


def _span(rates: Iterable[float], *, upwards: bool = False) -> str:
    """One rate, or the smallest and the largest."""
    values = list(rates)
    ends = dict.fromkeys(rate_text(end, upwards=upwards) for end in (min(values), max(values)))
    return " to ".join(ends)


def _average(groups: Sequence[Group]) -> str:
    """That what was measured is an average, where it is one over several tasks."""
    return " on average" * (groups[0].benchmark.tasks > 1)


def _lower(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"
