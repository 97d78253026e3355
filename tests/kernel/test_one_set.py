"""Theorem `one set` of docs/theory.md on the kernel: theta_T from I u J and the messages, whatever left the buffer when."""

import numpy as np
import pytest
import torch
from test_preference_property import ROWS, stream
from torch import nn

from cop2l.kernel.exact import digest, exact_arithmetic
from cop2l.kernel.learning import ReferenceLearner
from cop2l.kernel.options import Options


class ByContent(ReferenceLearner):
    """The control: who stays in the buffer is decided by the examples' content, of which only the known part is at hand."""

    def kept_in_buffer(self, rows, task, after):
        known = dict(zip(self.parts[task - 1].row, self.parts[task - 1].x[:, 0].tolist(), strict=True))
        keys = np.array([known.get(row, np.inf) for row in rows])
        return np.argsort(np.argsort(keys, kind="stable")) < self.options.memory // after


def engine(kind, options, parts):
    torch.manual_seed(0)
    made = kind(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), options)
    made.parts = parts
    return made


def rebuilt(kind, options, run, examples):
    again = engine(kind, options, examples)
    again.sizes = run.sizes
    again.reconstruct(run.sets, examples)
    return digest(again.model.state_dict())


@pytest.mark.parametrize("kind", [ReferenceLearner, ByContent])
def test_the_model_is_rebuilt_from_one_set(kind):
    """Also where all of another class is known, as for the bounds of classes. The control is not rebuilt every time."""
    evicted, same = 0, []
    for seed in range(6):
        options = Options(
            memory=30, k=2, omega=2.0, gamma=0.9, epochs=4, batch=16, lr=0.3, seed=seed, buffer="uniform", stop="none",
            max_iterations=6, kind="kl",
        )  # fmt: skip
        parts = stream(seed)
        with exact_arithmetic(1):
            run = engine(kind, options, parts)
            for part in parts:
                run.learn(part)
            theta = digest(run.model.state_dict())
            sets = [np.union1d(one.compression, one.evicted) for one in run.sets]
            evicted += sum(len(one.evicted) for one in run.sets)
            examples = [part.take(rows) for part, rows in zip(parts, sets, strict=True)]
            same.append(rebuilt(kind, options, run, examples) == theta)
            for label in (0, 1):
                others = [np.flatnonzero(part.y.numpy() != label) for part in parts]
                wider = [np.union1d(*rows) for rows in zip(sets, others, strict=True)]
                examples = [part.take(rows) for part, rows in zip(parts, wider, strict=True)]
                assert all(len(rows) < ROWS for rows in wider)
                same.append(rebuilt(kind, options, run, examples) == theta)
    assert evicted > 0
    assert all(same) == (kind is ReferenceLearner), same
