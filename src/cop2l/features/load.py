"""One name for every stream: a data set, or a data set's cached features."""

from dataclasses import replace
from typing import Any

from cop2l import streams
from cop2l.errors import UserError
from cop2l.features.overlap import not_valid
from cop2l.features.store import find
from cop2l.streams import Labelled, Stream, cut

TASKS = {"cifar10": 5, "cifar100": 10, "tinyimagenet": 40, "imagenette": 5, "imagewoof": 5}
"""Tasks that the classes of a data set are cut into, unless another number is asked for."""


def load_stream(name: str, **options: Any) -> Stream:
    """The stream of this name: `cifar10@dinov2-vits14-224` are cached features, other names are data sets.

    Takes the options of `cop2l.streams.load`.
    """
    return _features(name, **options) if "@" in name else streams.load(name, **options)


def _features(
    name: str,
    *,
    scenario: str | None = None,
    tasks: int | None = None,
    order_seed: int | None = None,
    groups: Any = None,
    images: str = "shared",  # noqa: ARG001 - options of other streams, which features do not depend on
    folder: Any = None,  # noqa: ARG001
    seed: int = 0,  # noqa: ARG001
) -> Stream:
    entry = find(name)
    spec = entry.about["spec"]
    dataset, classes = spec["dataset"], int(entry.about["classes"])
    if groups is None and tasks is None:
        tasks = TASKS.get(dataset)
        if tasks is None:
            raise UserError(f"Say into how many tasks the {classes} classes of {name!r} are cut, with tasks.")
    (x, y), (x_test, y_test) = entry.part("train"), entry.part("test")
    data = Labelled(
        name=entry.name,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        names=tuple(entry.about.get("class_names") or map(str, range(classes))),
        description={"features": {"key": entry.key, **spec}},
    )
    stream = cut(data, scenario or "class-incremental", tasks=tasks, order_seed=order_seed, groups=groups)
    saw = tuple(entry.about["pretrained_on"])
    return replace(stream, pretrained_on=saw, not_valid=stream.not_valid + not_valid(dataset, saw))
