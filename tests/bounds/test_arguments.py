"""Edges that are defined, arguments that are refused by name, and bounds that say why they are vacuous."""

import math

import numpy as np
import pytest

from cop2l import bounds
from cop2l.errors import UserError

LOG = math.log(0.05)
RUN = {
    "n": 100,
    "compression": 10,
    "evicted": 2,
    "errors": 5,
    "iterations": [3, 4, 5],
    "task": 1,
    "tasks": 3,
    "log_delta": LOG,
}
PICKED = {"n": 100, "picked": 5, "errors_not_picked": 3, "iterations": 4, "tasks": 3, "log_delta": LOG}
GOOD = {
    bounds.kl_certificate: RUN,
    bounds.preference_epsilon: {"k": 5, "n": 100, "log_delta": LOG},
    bounds.preference_certificate: PICKED,
    bounds.buffer_certificate: {
        "n_selected": 100,
        "compressed": 8,
        "iterations": 4,
        "tasks": 3,
        "log_delta": LOG,
    },
    bounds.holdout_certificate: {"n": 100, "errors": 5, "tasks": 3, "log_delta": LOG},
    bounds.binomial_tail_inverse: {"errors": 5, "n": 100, "log_delta": LOG},
    bounds.binomial_upper_tail: {"errors": 5, "n": 100, "p": 0.03},
    bounds.log_zeta: {"k": 5},
    bounds.log_weight: {"iterations": 5, "grid": 21},
    bounds.anytime_log_delta: {"log_delta": LOG, "tasks": 3},
}
GRIDS = (
    bounds.kl_certificate,
    bounds.preference_certificate,
    bounds.buffer_certificate,
)
REALS = {"log_delta", "p"}


def name(value: object) -> str:
    return getattr(value, "__name__", repr(value))


def refused(function, arguments: dict, argument: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        function(**arguments | {argument: value})
    assert isinstance(caught.value, UserError)
    sentence = str(caught.value)
    assert argument in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


EACH = [(function, argument) for function, arguments in GOOD.items() for argument in arguments]
EACH += [(function, "grid") for function in GRIDS]


@pytest.mark.parametrize(("function", "argument"), EACH, ids=name)
def test_wrong_kinds_of_numbers_are_refused_by_name(function, argument):
    arguments = GOOD[function]
    float(function(**arguments))  # the arguments themselves are good
    values = [math.nan, "5", True, np.bool_(True), [1.5]]
    values.append(0 if argument == "grid" else None)
    if argument not in REALS:
        values += [-1, 2.0, np.float64(3), 10**13]
    if argument == "iterations" and function is bounds.kl_certificate:
        values += [[1, 2], [1, 2, 3, 4], [1, 2, -1], [1, 2, 2.5], [1, 2, True], "123", b"123", {1, 2, 3}]
    for value in values:
        refused(function, arguments, argument, value)


@pytest.mark.parametrize(
    "function", [f for f, arguments in GOOD.items() if "log_delta" in arguments], ids=name
)
@pytest.mark.parametrize("log_delta", [1e-9, 0.05, math.inf, -math.inf])
def test_delta_outside_its_range_is_refused(function, log_delta):
    refused(function, GOOD[function], "log_delta", log_delta)


@pytest.mark.parametrize(
    ("function", "argument", "value"),
    [
        (bounds.kl_certificate, "task", 0),
        (bounds.kl_certificate, "task", 4),
        (bounds.kl_certificate, "tasks", 0),
        (bounds.kl_certificate, "compression", 101),
        (bounds.kl_certificate, "evicted", 91),
        (bounds.kl_certificate, "errors", 89),
        (bounds.preference_epsilon, "k", 101),
        (bounds.preference_epsilon, "n", 0),
        (bounds.preference_certificate, "picked", 101),
        (bounds.preference_certificate, "errors_not_picked", 96),
        (bounds.buffer_certificate, "compressed", 101),
        (bounds.holdout_certificate, "errors", 101),
        (bounds.holdout_certificate, "tasks", 0),
        (bounds.binomial_tail_inverse, "errors", 101),
        (bounds.binomial_tail_inverse, "n", 0),
        (bounds.anytime_log_delta, "tasks", 0),
    ],
    ids=name,
)
def test_numbers_out_of_range_are_refused_by_name(function, argument, value):
    refused(function, GOOD[function], argument, value)


def test_evictions_that_cannot_be_are_refused():
    single = RUN | {"tasks": 1, "iterations": [3]}
    refused(bounds.kl_certificate, single, "evicted", 1)


@pytest.mark.parametrize("function", GRIDS, ids=name)
def test_a_grid_of_one_point_has_no_iterations(function):
    refused(function, GOOD[function], "grid", 1)
    none = [0, 0, 0] if function is bounds.kl_certificate else 0
    arguments = GOOD[function] | {"iterations": none} | ({"picked": 0} if "picked" in GOOD[function] else {})
    assert function(**arguments, grid=1).value < function(**arguments).value


def test_numpy_integers_are_counts():
    as_numpy = {key: np.int64(value) if isinstance(value, int) else value for key, value in RUN.items()}
    as_numpy["iterations"] = np.array(RUN["iterations"])
    assert bounds.kl_certificate(**as_numpy) == bounds.kl_certificate(**RUN)


def kl(n: int, compression: int, errors: int, log_delta: float = LOG):
    return bounds.kl_certificate(n, compression, 0, errors, [0], 1, 1, log_delta)


def test_edges_of_the_kl_certificate():
    for n, compression, errors in [(0, 0, 0), (1, 1, 0), (50, 50, 0), (50, 20, 30), (1, 0, 1)]:
        bound = kl(n, compression, errors)
        assert bound.value == float(bound) == 1.0
        assert bound.reason
    assert "left" in kl(50, 50, 0).reason
    assert "misclassified" in kl(50, 0, 50).reason
    # delta = 1 and one example, rightly classified: zeta(0) for each set and for K is all that is paid.
    bound = kl(1, 0, 0, log_delta=0.0)
    assert bound.value == pytest.approx(1 - (6 / math.pi**2) ** 3, abs=1e-9)
    assert bound.reason is None
    vacuous = kl(1000, 999, 0, log_delta=-1e5)
    assert vacuous.value == 1.0
    assert "too few" in vacuous.reason


def test_edges_of_the_preference_bound():
    assert bounds.preference_epsilon(1, 1, LOG) == 1.0
    assert bounds.preference_epsilon(0, 1, 0.0) == 0.0
    assert bounds.preference_epsilon(0, 1, LOG) == pytest.approx(0.95, abs=1e-9)  # delta / (1 - e) = 1
    assert bounds.preference_epsilon(9, 10, LOG) == pytest.approx(1 - 0.05 / 100, abs=1e-9)  # 1 - delta/n^2
    assert bounds.preference_epsilon(9, 10, -1e5) == 1.0
    for bound in (
        bounds.preference_certificate(0, 0, 0, 0, 1, LOG),
        bounds.preference_certificate(9, 4, 5, 0, 1, LOG),
        bounds.preference_certificate(10, 4, 5, 0, 1, -1e5),
        bounds.buffer_certificate(0, 0, 0, 1, LOG),
    ):
        assert bound.value == 1.0
        assert bound.reason
    assert (
        len({bounds.preference_certificate(*c, 0, 1, -1e5).reason for c in [(0, 0, 0), (9, 4, 5), (9, 4, 4)]})
        == 3
    )


def test_edges_of_the_binomial_and_holdout_bounds():
    assert bounds.binomial_tail_inverse(1, 1, LOG) == 1.0
    assert bounds.binomial_tail_inverse(0, 1, 0.0) == pytest.approx(0.5, abs=1e-9)  # delta counts as 1/2
    assert bounds.binomial_tail_inverse(0, 1, LOG) == pytest.approx(0.95, abs=1e-9)
    reasons = {bounds.holdout_certificate(*c, 1, -1e5).reason for c in [(0, 0), (3, 3), (3, 2)]}
    assert len(reasons) == 3
    assert None not in reasons
    assert bounds.holdout_certificate(3, 2, 1, LOG).reason is None


def test_terms_add_up_to_epsilon():
    counted = {"complement errors", "complement size", "epsilon"}
    terms = bounds.kl_certificate(**RUN).terms
    prices = math.fsum(value for key, value in terms.items() if key not in counted)
    assert prices == pytest.approx(terms["epsilon"], rel=1e-12)
    assert terms["complement size"] == 88
    assert terms["complement errors"] == 5
    terms = bounds.preference_certificate(**GOOD[bounds.preference_certificate]).terms
    assert terms["ln(T/delta)"] + terms["messages"] == pytest.approx(terms["epsilon"], rel=1e-12)


def test_an_interval_at_level_one_is_refused_by_name():
    with pytest.raises(UserError, match="level must be below 1"):
        bounds.clopper_pearson(5, 100, 1.0)


def test_a_bound_cannot_be_changed():
    bound = bounds.kl_certificate(**RUN)
    with pytest.raises(AttributeError):
        bound.value = 0.0
