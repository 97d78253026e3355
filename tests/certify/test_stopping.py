"""The criterion of early stopping has the kernel's bits, whatever is asked."""

import math
import random

import pytest

from cop2l.certify import stopping
from cop2l.kernel import learning
from cop2l.kernel.options import Options

STOPS = [
    Options(stop="kl"), Options(stop="preference"), Options(stop="none"), Options(stop="combined"),
    Options(stop="combined", tasks=7), Options(stop="combined", grid=True, max_iterations=64), Options(stop="kl", delta=1e-300),
]  # fmt: skip


def cases(count):
    """Tasks of all sizes, from nothing picked or wrong to everything."""
    draw = random.Random(0)
    for _ in range(count):
        n = draw.choice([0, 1, 2, 10, 100, 5000, 10**6, draw.randint(1, 10**5)])
        picked = draw.choice([0, n, draw.randint(0, n), draw.randint(0, n // 10)])
        errors = draw.choice(
            [0, n - picked, draw.randint(0, n - picked), draw.randint(0, (n - picked) // 20)]
        )
        yield n, picked, errors, draw.choice([0, 1, draw.randint(2, 3000)])


@pytest.mark.parametrize("options", STOPS, ids=lambda options: f"{options.stop} {options.delta}")
def test_the_criterion_is_the_kernels(options):
    for case in cases(300):
        value = learning.criterion(options, *case)
        assert stopping.criterion(options, *case) == value, case
        near = (
            math.nextafter(value, 0),
            value,
            math.nextafter(value, 2),
            value * (1 - 1e-13),
            value * 1.01,
            0.3,
            0.0,
            math.inf,
        )
        for least in near:
            assert stopping.reaches(options, *case, least) == (value >= least), (case, least)


def test_the_inverse_is_the_kernels():
    draw = random.Random(1)
    for _ in range(2000):
        q = draw.choice([0.0, 1.0, draw.random(), draw.random() ** 4])
        eps = draw.choice([0.0, 3.0, draw.random(), draw.random() ** 6, draw.random() ** 20])
        assert stopping.kl_inverse(q, eps) == learning.kl_inverse(q, eps), (q, eps)
