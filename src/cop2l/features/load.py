"""One name for every stream: a data set, or a data set's cached features."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from cop2l import streams
from cop2l.errors import unknown
from cop2l.features.overlap import not_valid
from cop2l.features.store import Entry, find
from cop2l.streams import DATASETS, Labelled, Stream, cut
from cop2l.streams.loading import refuse
from cop2l.streams.own import usual_tasks
from cop2l.streams.scenarios import Cut

UNMOVED = ("download", "seed")
"""Options of every stream that change nothing about cached features."""


def load_stream(name: str | Path, **options: Any) -> Stream:
    """The stream of this name: `cifar10@dinov2-vits14-224` are cached features, other names are data.

    Takes the options of `cop2l.streams.load`.
    """
    if "@" not in str(name) or Path(name).exists():
        return streams.load(name, **options)
    return _features(find(str(name)), **{k: v for k, v in options.items() if k not in UNMOVED})


def _features(
    entry: Entry, *, scenario: str | None = None, images: Any = None, folder: Any = None, **how: Any
) -> Stream:
    known = get_type_hints(Cut)
    refuse(entry.name, {"images": images, "folder": folder}, ("scenario", *known))
    for option in how:
        if option not in known:
            raise unknown("option of a stream of features", option, ("scenario", *known))
    stream = cut(labelled(entry), scenario or "class-incremental", **how)
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
