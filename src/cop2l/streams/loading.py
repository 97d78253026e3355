"""Streams by name: a data set, a synthetic stream, or the user's own file or folder."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from cop2l.errors import UserError, unknown
from cop2l.plugins import imported, installed_names
from cop2l.streams.clouds import synthetic
from cop2l.streams.datasets import DATASETS, digits
from cop2l.streams.domains import DOMAINS, IMAGES, domain_stream
from cop2l.streams.encoding import COLUMNS
from cop2l.streams.pictures import Pictures
from cop2l.streams.preparing import Preparing
from cop2l.streams.scenarios import Labelled, Split, draw_examples, split_into_tasks
from cop2l.streams.task import SCENARIOS, Stream

GENERATED = ("synthetic",)
"""Streams whose examples are drawn, not stored."""
NAMES = (*DATASETS, *DOMAINS, "digits", *GENERATED)
OWN = (*COLUMNS, "text_size", "classes", "task_classes", "size", "test_share", "examples")
"""All options of own data."""
SIDE = 64
"""Side in pixels to which the data sets of pictures in files are resized by default, as published."""


def load(
    name: str | Path,
    *,
    scenario: str | None = None,
    tasks: int | None = None,
    class_seed: int | None = None,
    order: str | None = None,
    order_seed: int | None = None,
    images: str = "shared",
    folder: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
    preparing: Preparing | None = None,
    **options: Any,
) -> Stream:
    """The stream of a data set by name, or of the user's own file or folder by path.

    A named data set is searched in `folder`, or without it in $COP2L_DATA and the downloads. If it is found nowhere it
    is downloaded, unless `download` is False. `tasks`, `class_seed`, `task_classes`, `order`, `order_seed` and
    `examples` are options of the split (`Split`). `domains` ("permuted" or "rotated") makes a domain-incremental stream
    of square pictures; then `images` are "shared" by all tasks or "disjoint", and `seed` draws the domains. `size` resizes
    pictures in files. Options of own data are `classes`, `test_share` (the share that `seed` draws as a test part if there
    is none), and the uses of columns, `cop2l.streams.encoding.Columns`. Options of `synthetic` are passed to it.

    `preparing`: for a table, these rows of task 1, which do not certify, decide how missing values and categories are
    encoded, unless `missing` and `categories` say so.
    """
    if scenario is not None and scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if images not in IMAGES:
        raise unknown("choice of images", images, IMAGES)
    if str(name) in GENERATED:
        unused = {"class_seed": class_seed, "order": order, "order_seed": order_seed, "folder": folder}
        options |= {"tasks": tasks, "scenario": scenario}
        return _load_synthetic(seed, options, unused | {"images": images})
    _refuse_unknown(options, ("domains", *OWN))
    source, domains = str(name), options.pop("domains", None)
    if source in DOMAINS:
        if domains not in (None, DOMAINS[source][1]):
            raise UserError(
                f"The domains of {source} are {DOMAINS[source][1]}; leave out domains, and choose by tasks, images, order,"
                " order_seed, seed and folder."
            )
        source, domains = DOMAINS[source]
    task_classes, size, examples = (options.pop(key, None) for key in ("task_classes", "size", "examples"))
    stored = labelled(source, folder=folder, download=download, seed=seed, **options)
    data = _decode(draw_examples(stored, examples), size, SIDE if source in DATASETS else None)
    if domains is not None:
        if scenario not in (None, "domain-incremental") or (class_seed, task_classes) != (None, None):
            raise UserError(
                "Permuted and rotated domains leave no choice of scenario, class_seed or task_classes; leave them out."
            )
        return domain_stream(
            data, domains, tasks=tasks, images=images, seed=seed, order=order, order_seed=order_seed
        )
    if images != IMAGES[0]:
        raise UserError(f"images={images} is for permuted and rotated domains alone; leave it out.")
    split: Split = {"tasks": tasks, "task_classes": task_classes, "class_seed": class_seed, "order": order}
    split["order_seed"] = order_seed
    default = "class-incremental" if data.domain is None else "domain-incremental"
    return split_into_tasks(data, scenario or default, preparing=preparing, **split)


def _load_synthetic(seed: int, options: dict[str, Any], unused: dict[str, Any]) -> Stream:
    parameters = inspect.signature(synthetic).parameters
    refuse("synthetic", unused, parameters)
    options = {name: value for name, value in options.items() if value is not None}
    if "examples" in options:
        options["n"] = max(1, options.pop("examples") // (options.get("tasks") or 3))
    _refuse_unknown(options, tuple(parameters))
    for name, value in options.items():
        types = {int: int, float: int | float}.get(type(parameters[name].default))
        if types is not None and not isinstance(value, types):
            raise UserError(f"{name} is {value!r}; give a{' whole' * (types is int)} number.")
    return synthetic(seed=seed, **options)


def _decode(data: Labelled, size: int | None, default_size: int | None) -> Labelled:
    """The data with decoded pictures."""
    if not isinstance(data.x, Pictures):
        if size is not None:
            raise UserError(f"size resizes pictures in files, which {data.name} does not have; leave it out.")
        return data
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UserError(f"size is {size!r}; give the side of the pictures in pixels, such as 64.")
    side = default_size if size is None else size
    # The mode of the training part, grey or coloured, holds for the test part too.
    x, x_test = data.x.array(side), Pictures(data.x_test.sources, data.x.mode).array(side)
    if x.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Training and test pictures of {data.name} differ in size; resize them with size=, such as size=64."
        )
    return replace(data, x=x, x_test=x_test, description=data.description | {"size": x.shape[2]})


def refuse(name: object, unused: Mapping[str, Any], options: Iterable[str]) -> None:
    """Refuse an option that this stream does not use, unless it has its default."""
    for option, value in unused.items():
        if value is not None and (option, value) != ("images", IMAGES[0]):
            raise UserError(
                f"The stream {name} does not take {option}; leave it out. It takes {', '.join(sorted(options))}."
            )


def _refuse_unknown(options: Iterable[str], known_options: tuple[str, ...]) -> None:
    if unknown_options := sorted(set(options) - set(known_options)):
        raise unknown("option of this stream", unknown_options[0], known_options)


def labelled(
    name: str | Path,
    *,
    folder: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
    **options: Any,
) -> Labelled:
    """The labelled data of a name or path, as stored; pictures are bytes or `Pictures`."""
    text = str(name)
    if options and (text in DATASETS or text == "digits"):
        raise UserError(f"{text} has fixed labels and a test part; leave out {', '.join(sorted(options))}.")
    if text == "digits":
        refuse(text, {"folder": folder}, ("scenario", "domains", "images", "seed", *get_type_hints(Split)))
        return digits()
    if text in DATASETS:
        if download and folder is None and DATASETS[text].locate() is None:
            from cop2l.streams.download import get

            get(text)
        return DATASETS[text].open(folder)
    plugins = installed_names("streams")
    if text in plugins:
        data = imported(plugins[text])(folder=folder, **options)
        if not isinstance(data, Labelled):
            raise UserError(
                f"{plugins[text]} must return a cop2l.streams.Labelled, not {type(data).__name__}."
            )
        return data
    path = Path(name).expanduser()
    if not path.exists():
        if "/" in text or "\\" in text or path.suffix:
            raise UserError(f"There is no file or folder {path}; give the path of your data.")
        raise unknown("data set", text, [*NAMES, *plugins])
    if folder is not None:
        raise UserError(f"The path {path} needs no folder; leave out folder.")
    from cop2l.streams import files

    return files.read_data(path, seed=seed, **options)


def catalogue() -> dict[str, str]:
    """The names that `load` takes, each with one line about it."""
    lines = {d.name: f"{d.title}: {d.classes} classes, {d.tasks} tasks" for d in DATASETS.values()}
    lines["permuted-mnist"] = "MNIST, pixels in another order in each of 10 tasks (domain-incremental)"
    lines["rotated-mnist"] = "MNIST, rotated by another angle in each of 10 tasks (domain-incremental)"
    lines["digits"] = "1797 digits of 8 x 8 pixels, inside scikit-learn: 10 classes, 5 tasks"
    lines["synthetic"] = "clouds on a grid, whose risks are known exactly: 6 classes, 3 tasks"
    plugins = installed_names("streams")
    return {name: f"of an installed package: {path}" for name, path in plugins.items()} | lines
