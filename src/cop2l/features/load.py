"""One name for every stream: a data set, or a data set's cached features."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from cop2l import streams
from cop2l.errors import unknown
from cop2l.features.store import Entry, find_entry
from cop2l.streams import DATASETS, Labelled, Stream, split_into_tasks
from cop2l.streams.loading import refuse
from cop2l.streams.own import usual_tasks
from cop2l.streams.scenarios import Split

_IMAGENET = {"imagenet", "imagenet1k", "imagenet21k", "imagenet22k", "lvd142m"}
PART_OF = dict.fromkeys(("imagenet", "imagenet1k", "tinyimagenet", "imagenette", "imagewoof"), _IMAGENET)
"""Data sets that are part of others, by the names of the others."""
UNMOVED = ("download", "seed", "prior")
"""Options of every stream that change nothing about cached features."""


def load_stream(name: str | Path, **options: Any) -> Stream:
    """The stream of this name: `cifar10@dinov2-vits14-224` are cached features, other names are data.

    Takes the options of `cop2l.streams.load`.
    """
    if "@" not in str(name) or Path(name).exists():
        return streams.load(name, **options)
    return _features(find_entry(str(name)), **{k: v for k, v in options.items() if k not in UNMOVED})


def _features(
    entry: Entry, *, scenario: str | None = None, images: Any = None, folder: Any = None, **how: Any
) -> Stream:
    known = get_type_hints(Split)
    refuse(entry.name, {"images": images, "folder": folder}, ("scenario", *known))
    for option in how:
        if option not in known:
            raise unknown("option of a stream of features", option, ("scenario", *known))
    stream = split_into_tasks(labelled(entry), scenario or "class-incremental", **how)
    saw = tuple(entry.about["pretrained_on"])
    reasons = not_valid(entry.about["spec"]["dataset"], saw)
    return replace(stream, pretrained_on=saw, not_valid=stream.not_valid + reasons)


def labelled(entry: Entry) -> Labelled:
    """The features of a cache entry as labelled data, uncut."""
    (x, y), (x_test, y_test) = entry.part("train"), entry.part("test")
    classes = int(entry.about["classes"])
    known = DATASETS.get(entry.about["spec"]["dataset"])
    if known is not None and known.classes != classes:
        known = None
    return Labelled(
        name=entry.name,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        names=tuple(entry.about.get("class_names") or (known and known.names) or map(str, range(classes))),
        tasks=known.tasks if known else usual_tasks(classes),
        description={"features": {"key": entry.key, **entry.about["spec"]}},
    )


def not_valid(dataset: str, pretrained_on: Iterable[str]) -> tuple[str, ...]:
    """Why a certificate on features of this data set is not valid; empty if nothing is known against it.

    >>> not_valid("cifar10", ["ImageNet-1k"])
    ()
    >>> not_valid("imagenette", ["ImageNet-1k"])
    ("The backbone saw this distribution's data: it was trained on ImageNet-1k, which contains imagenette.",)
    """
    saw = tuple(pretrained_on)
    if not saw or "unknown" in map(_plain, saw):
        return (
            "It is not known which data the backbone was trained on, so it may have seen this distribution.",
        )
    holders = PART_OF.get(_plain(dataset), set()) | {_plain(dataset)}
    found = next((name for name in saw if _plain(name) in holders), None)
    if found is None:
        return ()
    what = "is this data set" if _plain(found) == _plain(dataset) else f"contains {dataset}"
    return (f"The backbone saw this distribution's data: it was trained on {found}, which {what}.",)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
