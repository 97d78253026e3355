"""Permuted and rotated domains: the same classes in every task, and another view of the pictures."""

from dataclasses import replace
from typing import Any

import numpy as np

from cop2l.errors import UserError, unknown
from cop2l.randomness import marks
from cop2l.streams.scenarios import Labelled, Prepare, Split, lazy_stream, shuffled_order, task_sequence
from cop2l.streams.task import Stream

IMAGES = ("shared", "disjoint")
VIEWS = ("permuted", "rotated")
DOMAINS = {"permuted-mnist": ("mnist", "permuted"), "rotated-mnist": ("mnist", "rotated")}
"""The streams with a name, each with its data set and its kind of domains."""
SHARED = "Tasks share examples: the same pictures are in every task, so the tasks are not independent."


def domain_stream(
    data: Labelled,
    kind: str,
    *,
    tasks: int | None = None,
    images: str = "shared",
    seed: int = 0,
    order: str | None = None,
    order_seed: int | None = None,
) -> Stream:
    """A domain-incremental stream of pictures; the seed draws one permutation or one angle per task.

    `shared` gives every task all training pictures, as published; certificates are not valid. `disjoint` gives every
    picture to one task. Every task is tested on all test pictures in its own view.
    """
    tasks = 10 if tasks is None else tasks
    if kind not in VIEWS:
        raise unknown("kind of domains", kind, VIEWS)
    if data.x.ndim != 4 or data.x.shape[2] != data.x.shape[3]:
        raise UserError(f"{data.name} does not hold square pictures; leave out domains={kind}.")
    if not 1 <= tasks <= len(data.x):
        raise UserError(f"tasks is {tasks}; give a whole number from 1 to {len(data.x)}.")
    split: Split = {"order": order, "order_seed": order_seed}
    sequence = task_sequence(tasks, split)
    prepare: list[Prepare] = [Permuted(data.prepare, seed, t + 1, data.x.shape[1:]) for t in sequence]
    detail: dict[str, Any] = {}
    if kind == "rotated":
        angles = draw_angles(tasks, seed)
        detail["angles"] = [angles[t] for t in sequence]
        prepare = [Rotated(data.prepare, angle, data.x.shape[2]) for angle in detail["angles"]]
    rows = [np.arange(len(data.x))] * tasks
    if images == "disjoint":
        parts = np.array_split(shuffled_order(seed, "disjoint images", n=len(data.x)), tasks)
        rows = [np.sort(parts[t]) for t in sequence]
    stream = lazy_stream(
        data,
        "domain-incremental",
        split,
        heads=(tuple(range(data.classes)),) * tasks,
        train=rows,
        test=[np.arange(len(data.x_test))] * tasks,
        prepare=prepare,
    )
    return replace(
        stream,
        name=f"{kind}-{data.name}",
        not_valid=(SHARED,) if images == "shared" and tasks > 1 else (),
        description=stream.description | {"domains": kind, "images": images, "seed": seed} | detail,
    )


def draw_angles(tasks: int, seed: int) -> tuple[int, ...]:
    """One angle per task, a whole number of degrees, uniform in [-180, 180]."""
    return tuple(int(m % 361) - 180 for m in marks(seed, "rotation", n=tasks))


class Permuted:
    """Permutes the pixels, keeps the shape, and prepares the pictures."""

    def __init__(self, prepare: Prepare, seed: int, task: int, shape: tuple[int, ...]) -> None:
        self.prepare = prepare
        self.order = shuffled_order(seed, "pixel order", task, n=int(np.prod(shape)))

    def __call__(self, x: np.ndarray) -> Any:
        return self.prepare(x.reshape(len(x), -1)[:, self.order].reshape(x.shape))


class Rotated:
    """Rotates pictures anticlockwise about their centre, fills with black, and prepares them."""

    def __init__(self, prepare: Prepare, degrees: int, side: int) -> None:
        self.prepare = prepare
        self.sources, self.weights = rotation(degrees, side)

    def __call__(self, x: np.ndarray) -> Any:
        pixels = x.reshape(-1, self.sources.shape[1]).T.astype(np.float32)
        rotated = sum(w[:, None] * pixels[s] for s, w in zip(self.sources, self.weights, strict=True))
        # Interpolated values are rounded, because `prepare` takes bytes.
        return self.prepare(np.rint(np.transpose(rotated)).astype(np.uint8).reshape(x.shape))


def rotation(degrees: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The bilinear rotation of a square picture: the four source pixels of each output pixel, and their weights.

    >>> sources, weights = rotation(90, 2)
    >>> (weights * np.array([1, 2, 3, 4])[sources]).sum(axis=0).tolist()
    [2.0, 4.0, 1.0, 3.0]
    """
    quarter_turns: dict[int, tuple[float, float]] = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}
    angle = np.deg2rad(degrees)
    cosine, sine = quarter_turns.get(degrees % 360, (np.cos(angle), np.sin(angle)))
    centre = (side - 1) / 2
    row, column = (axis.ravel() - centre for axis in np.mgrid[:side, :side])
    # The inverse rotation finds the source of an output pixel; rows point downwards.
    from_row = cosine * row + sine * column + centre
    from_column = -sine * row + cosine * column + centre
    top, left = np.floor(from_row).astype(int), np.floor(from_column).astype(int)
    sources, weights = np.zeros((4, side * side), int), np.zeros((4, side * side), np.float32)
    for number, (down, right) in enumerate(np.ndindex(2, 2)):
        r, c = top + down, left + right
        inside = (r >= 0) & (r < side) & (c >= 0) & (c < side)
        sources[number, inside] = (r * side + c)[inside]
        weights[number, inside] = ((1 - np.abs(from_row - r)) * (1 - np.abs(from_column - c)))[inside]
    return sources, weights
