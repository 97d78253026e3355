"""A fingerprint of labelled data: equal data, equal text, whatever holds it."""

from typing import Any

from cop2l.kernel import samples


def fingerprint(x: Any, y: Any) -> str:
    """The fingerprint of a whole array, as certificates state it; it is read in blocks."""
    return samples.fingerprint(len(x), samples.blocks_of(x, y))
