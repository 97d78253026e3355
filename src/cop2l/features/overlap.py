"""Whether a backbone saw the data that a stream draws from: then no certificate on it is valid."""

import re
from collections.abc import Iterable

_IMAGENET = {"imagenet", "imagenet1k", "imagenet21k", "imagenet22k", "lvd142m"}
PART_OF = dict.fromkeys(("imagenet", "imagenet1k", "tinyimagenet", "imagenette", "imagewoof"), _IMAGENET)
"""Data sets that are part of others, by the names of the others."""


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
