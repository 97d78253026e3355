"""Streams of tasks: how labelled data is cut, and where it comes from."""

from pathlib import Path
from typing import Any

from cop2l.errors import UserError, unknown
from cop2l.streams import files
from cop2l.streams.catalog import DATASETS, data_set, decoded, digits
from cop2l.streams.domains import views
from cop2l.streams.fingerprint import fingerprint
from cop2l.streams.own import from_arrays
from cop2l.streams.pictures import Pictures
from cop2l.streams.places import home
from cop2l.streams.scenarios import Labelled, class_incremental, cut, domain_incremental, task_incremental
from cop2l.streams.synthetic import Synthetic, synthetic
from cop2l.streams.task import SCENARIOS, Scenario, Stream, Task

__all__ = [
    "DATASETS",
    "NAMES",
    "SCENARIOS",
    "Labelled",
    "Pictures",
    "Scenario",
    "Stream",
    "Synthetic",
    "Task",
    "catalogue",
    "class_incremental",
    "cut",
    "domain_incremental",
    "fingerprint",
    "from_arrays",
    "home",
    "labelled",
    "load",
    "synthetic",
    "task_incremental",
]

DOMAINS = {"permuted-mnist": ("mnist", "permuted"), "rotated-mnist": ("mnist", "rotated")}
NAMES = (*DATASETS, *DOMAINS, "digits", "synthetic")
CUT = ("groups",)
FILE = ("label", "columns", "domain", "classes", "test_share")


def load(
    name: str | Path,
    *,
    scenario: str | None = None,
    tasks: int | None = None,
    order_seed: int | None = None,
    images: str = "shared",
    folder: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Stream:
    """The stream of a data set by name, or of the user's own file or folder by path.

    `folder` is where a named data set lies (else $COP2L_DATA and the downloads are searched). `order_seed`
    shuffles the classes (or domains) before they are cut; `groups` lists the classes of each task. `domains`
    ("permuted" or "rotated") makes a domain-incremental stream of a data set of square pictures; then
    `images` are "shared" between the tasks or "disjoint", and `seed` draws the domains. `size` resizes
    pictures that lie in files. Own data: `label`, `columns`, `domain`, `classes`, `test_share` (where there is
    no test part, `seed` draws one). Options of `synthetic` go to it.
    """
    if scenario is not None and scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if name == "synthetic":
        given: dict[str, Any] = {"tasks": tasks, "scenario": scenario, **options}
        return synthetic(seed=seed, **{k: v for k, v in given.items() if v is not None})
    domains = options.pop("domains", None)
    source = str(name)
    if source in DOMAINS:
        source, domains = DOMAINS[source]
    own = {key: options.pop(key) for key in FILE if key in options}
    data = decoded(
        labelled(source, folder=folder, seed=seed, **own), options.pop("size", None), _side(source)
    )
    strange = sorted(set(options) - set(CUT))
    if strange:
        raise unknown("option of a stream", strange[0], (*CUT, *FILE, "size", "domains"))
    if domains is not None:
        if scenario not in (None, "domain-incremental"):
            raise UserError(
                f"Domains that are {domains} make a domain-incremental stream, not a {scenario} one."
            )
        if order_seed is not None or options.get("groups") is not None:
            raise UserError(
                f"Domains that are {domains} have no order of classes; leave out order_seed and groups."
            )
        return views(data, domains, tasks=tasks, images=images, seed=seed)
    usual = "class-incremental" if data.domain is None else "domain-incremental"
    return cut(data, scenario or usual, tasks=tasks, order_seed=order_seed, **options)


def labelled(
    name: str | Path, *, folder: str | Path | None = None, seed: int = 0, **options: Any
) -> Labelled:
    """The labelled data of a name or path, uncut, as stored: pictures are bytes or `Pictures`."""
    text = str(name)
    known = text in DATASETS or text == "digits"
    if known and options:
        raise UserError(f"{text} has its labels and its test part; leave out {', '.join(sorted(options))}.")
    if known:
        return digits() if text == "digits" else data_set(text).open(folder)
    path = Path(name).expanduser()
    if not path.exists():
        if "/" in text or "\\" in text or path.suffix:
            raise UserError(f"There is no file or folder {path}; give the path of your data.")
        raise unknown("data set", text, NAMES)
    if folder is not None:
        raise UserError(f"{path} is found by its path; leave out folder.")
    return files.read(path, seed=seed, **options)


def catalogue() -> dict[str, str]:
    """Every name that `load` knows, with one line about it."""
    lines = {d.name: f"{d.title}: {d.classes} classes, {d.tasks} tasks" for d in DATASETS.values()}
    lines["permuted-mnist"] = "MNIST, pixels in another order in each of 10 tasks (domain-incremental)"
    lines["rotated-mnist"] = "MNIST, turned by another angle in each of 10 tasks (domain-incremental)"
    lines["digits"] = "1797 digits of 8 x 8 pixels, inside scikit-learn: 10 classes, 5 tasks"
    lines["synthetic"] = "clouds on a grid, with risks known exactly: 6 classes, 3 tasks"
    return lines


def _side(name: str) -> int | None:
    return None if name not in DATASETS else 64
