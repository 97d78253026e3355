"""Streams by name, of data sets and of cached features."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from cop2l import streams
from cop2l.features.store import Entry, find_entry
from cop2l.streams import DATASETS, Labelled, Stream, split_into_tasks
from cop2l.streams.loading import refuse
from cop2l.streams.scenarios import Split

_IMAGENET = {"imagenet", "imagenet1k", "imagenet21k", "imagenet22k", "lvd142m"}
PART_OF = dict.fromkeys(("imagenet", "imagenet1k", "tinyimagenet", "imagenette", "imagewoof"), _IMAGENET)
"""For each data set, the names of the data sets that contain it."""
WITHOUT_EFFECT = ("download", "seed", "preparing")
"""Options of every stream that change nothing about cached features."""


def load_stream(name: str | Path, **options: Any) -> Stream:
    """The stream of cached features, such as `cifar10@dinov2-vits14-224`, or of data of another name.

    The options are those of `cop2l.streams.load`.
    """
    if "@" not in str(name) or Path(name).exists():
        return streams.load(name, **options)
    return _features(find_entry(str(name)), **{k: v for k, v in options.items() if k not in WITHOUT_EFFECT})


def _features(
    entry: Entry, *, scenario: str | None = None, images: Any = None, folder: Any = None, **split: Any
) -> Stream:
    refuse(entry.name, {"images": images, "folder": folder}, ("scenario", *get_type_hints(Split)))
    stream = split_into_tasks(labelled(entry), scenario or "class-incremental", **split)
    pretrained_on = tuple(entry.about["pretrained_on"])
    reasons = not_valid(entry.about["spec"]["dataset"], pretrained_on)
    return replace(stream, pretrained_on=pretrained_on, not_valid=stream.not_valid + reasons)


def labelled(entry: Entry) -> Labelled:
    """The features of a cache entry as labelled data."""
    (x, y), (x_test, y_test) = entry.part("train"), entry.part("test")
    classes = int(entry.about["classes"])
    dataset = DATASETS.get(entry.about["spec"]["dataset"])
    if dataset is not None and dataset.classes != classes:
        dataset = None
    return Labelled(
        name=entry.name,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        names=tuple(
            entry.about.get("class_names") or (dataset and dataset.names) or map(str, range(classes))
        ),
        tasks=dataset.tasks if dataset else 1,
        description={"features": {"key": entry.key, **entry.about["spec"]}},
    )


def not_valid(dataset: str, pretrained_on: Iterable[str]) -> tuple[str, ...]:
    """Why a certificate on features of this data set is not valid; empty if no reason is known.

    >>> not_valid("cifar10", ["ImageNet-1k"])
    ()
    >>> not_valid("imagenette", ["ImageNet-1k"])
    ("The backbone saw this distribution's data: it was trained on ImageNet-1k, which contains imagenette.",)
    """
    pretrained_on = tuple(pretrained_on)
    if not pretrained_on or "unknown" in map(_simplified, pretrained_on):
        return (
            "It is not known which data the backbone was trained on, so it may have seen this distribution.",
        )
    name = _simplified(dataset)
    overlap = PART_OF.get(name, set()) | {name}
    source = next((data for data in pretrained_on if _simplified(data) in overlap), None)
    if source is None:
        return ()
    relation = "is this data set" if _simplified(source) == name else f"contains {dataset}"
    return (f"The backbone saw this distribution's data: it was trained on {source}, which {relation}.",)


def _simplified(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
