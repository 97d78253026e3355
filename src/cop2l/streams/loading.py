"""Streams by name: a data set, a synthetic stream, or the user's own file or folder."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from cop2l.errors import UserError, unknown
from cop2l.plugins import imported, installed_names
from cop2l.streams.clouds import synthetic
from cop2l.streams.datasets import DATASETS, digits
from cop2l.streams.domains import DOMAINS, IMAGES, domain_stream
from cop2l.streams.pictures import Pictures
from cop2l.streams.scenarios import Labelled, Prior, Split, draw_examples, split_into_tasks
from cop2l.streams.task import SCENARIOS, Stream

GENERATED: dict[str, Callable[..., Stream]] = {"synthetic": synthetic}
NAMES = (*DATASETS, *DOMAINS, "digits", *GENERATED)
COLUMNS = ("label", "columns", "text", "domain", "group", "missing", "categories", "task_order")
OWN = (*COLUMNS, "text_size", "classes", "task_classes", "size", "test_share", "examples")
"""The options of own data; the first name columns of a table, or values in it."""

SIDE = 64
"""Pictures in files of many sizes are resized to this, as published, by default."""


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
    prior: Prior | None = None,
    **options: Any,
) -> Stream:
    """The stream of a data set by name, or of the user's own file or folder by path.

    `folder` is where a named data set lies; without it, $COP2L_DATA and the downloads are searched, and what
    is nowhere is downloaded, with a word on stderr, unless `download` is False. `class_seed`
    shuffles the classes before they are split; `task_classes` lists the classes of each task. `order="reversed"` or
    an `order_seed` changes the order of the tasks, and nothing about what is in them. `domains`
    ("permuted" or "rotated") makes a domain-incremental stream of a data set of square pictures; then
    `images` are "shared" between the tasks or "disjoint", and `seed` draws the domains. `size` resizes
    pictures that lie in files. `examples` draws so many training examples from all, for a short run. Own data: `label`,
    `columns`, `text`, `domain`, `task_order`, `group`, `classes`, `test_share` (where there is no test part, `seed` draws
    one), `missing` and `categories`; what these leave open, the `prior` part of the first task decides. Options of
    `synthetic` go to it.
    """
    if scenario is not None and scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if images not in IMAGES:
        raise unknown("choice of images", images, IMAGES)
    if name in GENERATED:
        generate, given = GENERATED[str(name)], {"tasks": tasks, "scenario": scenario, **options}
        if (examples := given.pop("examples", None)) is not None:
            given["n"] = max(1, examples // (tasks or 3))
        given = {key: value for key, value in given.items() if value is not None}
        parameters = inspect.signature(generate).parameters
        others = {"class_seed": class_seed, "order": order, "order_seed": order_seed, "folder": folder}
        refuse(name, others | {"images": images}, parameters)
        _only_known(given, tuple(parameters))
        for key, value in given.items():
            kinds = {int: int, float: int | float}.get(type(parameters[key].default))
            if kinds is not None and not isinstance(value, kinds):
                raise UserError(f"{key} is {value!r}; give a{' whole' * (kinds is int)} number.")
        return generate(seed=seed, **given)
    _only_known(options, ("domains", *OWN))
    task_classes, domains, size, examples = (
        options.pop(key, None) for key in ("task_classes", "domains", "size", "examples")
    )
    source = str(name)
    if source in DOMAINS:
        if domains not in (None, DOMAINS[source][1]):
            raise UserError(
                f"The domains of {source} are {DOMAINS[source][1]}; leave out domains, and choose by tasks, images, order,"
                " order_seed, seed and folder."
            )
        source, domains = DOMAINS[source]
    stored = labelled(source, folder=folder, download=download, seed=seed, **options)
    data = _decoded(draw_examples(stored, examples), size, SIDE if source in DATASETS else None)
    if domains is not None:
        if scenario not in (None, "domain-incremental") or class_seed is not None or task_classes is not None:
            raise UserError(
                "Permuted and rotated domains leave no choice of scenario, class_seed or task_classes; leave them out."
            )
        return domain_stream(
            data, domains, tasks=tasks, images=images, seed=seed, order=order, order_seed=order_seed
        )
    if images != IMAGES[0]:
        raise UserError(f"images={images} is for permuted and rotated domains alone; leave it out.")
    usual = "class-incremental" if data.domain is None else "domain-incremental"
    how: Split = {"tasks": tasks, "task_classes": task_classes, "class_seed": class_seed, "order": order}
    how["order_seed"] = order_seed
    return split_into_tasks(data, scenario or usual, prior=prior, **how)


def _decoded(data: Labelled, size: int | None, usual: int | None) -> Labelled:
    """The data with its pictures decoded, at a size if one is given."""
    if not isinstance(data.x, Pictures):
        if size is not None:
            raise UserError(f"{data.name} has a size of its own; leave out size={size}.")
        return data
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UserError(f"Give the size of the pictures in pixels, not {size!r}.")
    side = usual if size is None else size
    # The test part may begin with a grey picture among coloured ones: the training part decides for both.
    x, x_test = data.x.array(side), Pictures(data.x_test.sources, data.x.mode).array(side)
    if x.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Training and test pictures of {data.name} differ in size; give size=, such as size=64."
        )
    return replace(data, x=x, x_test=x_test, description=data.description | {"size": x.shape[2]})


def refuse(name: object, given: Mapping[str, Any], takes: Iterable[str]) -> None:
    """Refuse an option that this stream does not use; None and the default of `images` are allowed."""
    for option, value in given.items():
        if value is not None and (option, value) != ("images", IMAGES[0]):
            raise UserError(f"The stream {name} does not take {option}; it takes {', '.join(sorted(takes))}.")


def _only_known(options: dict[str, Any], known: tuple[str, ...]) -> None:
    if strange := sorted(set(options) - set(known)):
        raise unknown("option of this stream", strange[0], known)


def labelled(
    name: str | Path,
    *,
    folder: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
    **options: Any,
) -> Labelled:
    """The labelled data of a name or path, uncut, as stored: pictures are bytes or `Pictures`."""
    text = str(name)
    known = text in DATASETS or text == "digits"
    if known and options:
        raise UserError(f"{text} has its labels and its test part; leave out {', '.join(sorted(options))}.")
    if text == "digits":
        refuse(text, {"folder": folder}, ("scenario", "domains", "images", "seed", *get_type_hints(Split)))
        return digits()
    if known:
        if download and folder is None and DATASETS[text].locate() is None:
            from cop2l.streams.download import get

            get(text)
        return DATASETS[text].open(folder)
    if text in (others := installed_names("streams")):
        found = imported(others[text])(folder=folder, **options)
        if not isinstance(found, Labelled):
            raise UserError(
                f"{others[text]} must return a cop2l.streams.Labelled, not {type(found).__name__}."
            )
        return found
    path = Path(name).expanduser()
    if not path.exists():
        if "/" in text or "\\" in text or path.suffix:
            raise UserError(f"There is no file or folder {path}; give the path of your data.")
        raise unknown("data set", text, [*NAMES, *others])
    if folder is not None:
        raise UserError(f"{path} is found by its path; leave out folder.")
    from cop2l.streams import files

    return files.read_data(path, seed=seed, **options)


def catalogue() -> dict[str, str]:
    """Every name that `load` knows, with one line about it."""
    lines = {d.name: f"{d.title}: {d.classes} classes, {d.tasks} tasks" for d in DATASETS.values()}
    lines["permuted-mnist"] = "MNIST, pixels in another order in each of 10 tasks (domain-incremental)"
    lines["rotated-mnist"] = "MNIST, turned by another angle in each of 10 tasks (domain-incremental)"
    lines["digits"] = "1797 digits of 8 x 8 pixels, inside scikit-learn: 10 classes, 5 tasks"
    lines["synthetic"] = "clouds on a grid, with risks known exactly: 6 classes, 3 tasks"
    return {
        name: f"of an installed package: {path}" for name, path in installed_names("streams").items()
    } | lines
