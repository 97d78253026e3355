"""The scikit-learn classifier: scikit-learn's own checks, tasks one after the other, pipelines, frames."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cop2l.errors import Advice, UserError
from cop2l.models import build
from cop2l.sklearn import CoP2LClassifier

FEW = {"prior_epochs": 5, "max_iterations": 2}
EXPECTED_FAILURES = {
    "check_fit_score_takes_y": "it calls partial_fit after fit, whose certificate is for one task, fixed in advance"
}


@parametrize_with_checks([CoP2LClassifier()], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))  # stored writer by writer, and so not exchangeable
    x, y = x[order], y[order]
    return (x / 16).astype(np.float32), np.array([f"digit {label}" for label in y])


def test_fit_certifies_one_task(digits):
    x, y = digits
    classifier = CoP2LClassifier(random_state=3).fit(x[:1000], y[:1000])
    (bound,) = classifier.certificate_.bounds.values()
    error = 1 - classifier.score(x[1000:], y[1000:])
    assert error < bound < 0.25
    assert classifier.certificate_.records[0]["rows"] == 1000
    chances = classifier.predict_proba(x[1000:])
    assert chances.shape == (797, 10)
    assert np.allclose(chances.sum(1), 1)
    assert (classifier.classes_[chances.argmax(1)] == classifier.predict(x[1000:])).all()


def test_partial_fit_learns_a_task_per_call(digits):
    x, y = digits
    classes, classifier = np.unique(y), CoP2LClassifier(memory=300)
    tasks = [np.isin(y, classes[i : i + 5]) for i in (0, 5)]
    for rows in tasks:
        classifier.partial_fit(x[rows], y[rows], classes)
    kinds = {s["task"]: s["kind"] for s in classifier.certificate_.statements}
    assert kinds == {1: "buffer", 2: "combined"}  # the first task's data was gone
    again = clone(classifier).partial_fit(x[tasks[0]], y[tasks[0]], classes)
    again.partial_fit(x[tasks[1]], y[tasks[1]], earlier={1: (x[tasks[0]], y[tasks[0]])})
    assert again.certificate_.bounds[1] < classifier.certificate_.bounds[1]
    assert (again.predict(x) == classifier.predict(x)).all()
    assert classifier.score(x, y) > 0.8


def test_wrong_calls_are_one_sentence(digits):
    x, y = digits[0][:80], digits[1][:80]
    with pytest.raises(NotFittedError):
        CoP2LClassifier().predict(x)
    assert not hasattr(CoP2LClassifier(), "certificate_")
    with pytest.raises(UserError, match="first call of partial_fit needs classes="):
        CoP2LClassifier().partial_fit(x, y)
    begun = CoP2LClassifier(options=FEW).partial_fit(x, y, np.unique(digits[1]))
    with pytest.raises(UserError, match="differ from those of the first call"):
        begun.partial_fit(x, y, ["a", "b"])
    with pytest.raises(UserError, match="the label 'cat'"):
        begun.partial_fit(x, np.array(["cat"] * 80))
    with pytest.raises(UserError, match="begin with partial_fit"):
        CoP2LClassifier(options=FEW).fit(x, y).partial_fit(x, y, np.unique(y))
    assert begun.learner_.tasks_seen == 1


@pytest.mark.parametrize("bad_data", ["strange labels", "other data"])
def test_what_cannot_be_certified_is_not_learned(digits, bad_data):
    """Else the same call again would learn the data twice, and the second certificate of it would not hold."""
    x, y = digits[0][:300], digits[1][:300]
    classifier = CoP2LClassifier(memory=50, options=FEW).partial_fit(x[:150], y[:150], np.unique(y))
    issued = classifier.certificate_
    labels = np.full(150, "digit 11") if bad_data == "strange labels" else y[150:]
    with pytest.raises(UserError, match=r"digit 11|not what it was learned from"):
        classifier.partial_fit(x[150:], y[150:], earlier={1: (x[:150], labels)})
    assert classifier.learner_.tasks_seen == 1
    assert classifier.certificate_ is classifier.learner_.certificate is issued
    classifier.partial_fit(x[150:], y[150:], earlier={1: (x[:150], y[:150])})
    assert classifier.learner_.tasks_seen == 2


def test_a_first_call_that_failed_may_be_corrected(digits):
    x, y = digits[0][:150], digits[1][:150]
    classifier = CoP2LClassifier(memory=50, options=FEW)
    with pytest.raises(UserError, match="not among the classes"):
        classifier.partial_fit(x, y, np.unique(y)[1:])
    assert classifier.partial_fit(x, y, np.unique(y)).learner_.tasks_seen == 1


def test_parameters_clones_pipelines_and_own_models(digits):
    x, y = digits[0][:200] * 16, digits[1][:200]
    model = build("linear", inputs=(64,), classes=10, seed=5)
    before = model.head.weight.clone()
    found = CoP2LClassifier(model, options=FEW, random_state=np.random.RandomState(0))
    assert clone(found).get_params().keys() == {"model", "memory", "delta", "options", "random_state"}
    pipe = make_pipeline(FunctionTransformer(lambda values: values / 16), found)  # a scale known beforehand
    pipe.fit(x, y)
    assert (model.head.weight == before).all()
    assert pipe[-1].n_features_in_ == 64
    pipe.set_params(cop2lclassifier__delta=0.2)
    first = pipe[-1].certificate_.bounds[1]
    assert (
        clone(pipe).set_params(cop2lclassifier__random_state=0).fit(x, y)[-1].certificate_.options.delta
        == 0.2
    )
    assert 0 < first <= 1


def test_frames_keep_their_names(digits):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(digits[0][:200], columns=[f"p{i}" for i in range(64)])
    classifier = CoP2LClassifier(options=FEW).fit(frame, pandas.Series(digits[1][:200]))
    assert list(classifier.feature_names_in_[:2]) == ["p0", "p1"]
    plain = CoP2LClassifier(options=FEW).fit(digits[0][:200], digits[1][:200])
    assert (classifier.predict_proba(frame) == plain.predict_proba(digits[0][:200])).all()


def test_prior_examples_decide_the_scale():
    x, y = load_wine(return_X_y=True)
    chosen = {"preset": "hybrid", "scale": "prior"}
    classifier = CoP2LClassifier(options=chosen).fit(x, y)
    assert classifier.learner_.description["scale"] == "prior"
    assert classifier.score(x, y) > 0.95
    assert classifier.certificate_.bounds[1] < 0.15


@pytest.mark.parametrize("within", [lambda one: one, lambda one: make_pipeline(FunctionTransformer(), one)])
def test_advice_points_at_the_line_that_called(within):
    x, y = load_wine(return_X_y=True)
    with pytest.warns(Advice) as found:
        within(CoP2LClassifier(options={"preset": "hybrid", "prior_epochs": 1, "lr": 1e-6})).fit(x, y)
    assert {warning.filename for warning in found if warning.category is Advice} == {__file__}


def test_a_call_per_epoch_has_no_bound(digits):
    x, y = digits[0][:200], digits[1][:200]
    classifier = CoP2LClassifier(memory=50, options=FEW)
    for _ in range(2):
        classifier.partial_fit(x, y, np.unique(y))
    assert set(classifier.certificate_.bounds.values()) == {1.0}
    assert "are rows of task 1 too" in classifier.certificate_.not_valid[0]


def test_a_fitted_step_and_a_search_are_said(digits):
    x, y = digits[0][:200], digits[1][:200]
    few = CoP2LClassifier(options=FEW)
    with pytest.warns(Advice, match="'standardscaler' of the pipeline is fitted"):
        scaled = make_pipeline(StandardScaler(), few).fit(x, y)
    assert len(scaled[-1].certificate_.not_valid) == 1
    frozen = make_pipeline(FrozenEstimator(StandardScaler().fit(digits[0][200:])), few).fit(x, y)
    assert frozen[-1].certificate_.not_valid == ()
    search = GridSearchCV(
        few, {"delta": [0.05, 0.1]}, cv=2, scoring=lambda estimator, *_: -estimator.certificate_.bounds[1]
    )
    with pytest.warns(Advice, match="chosen by a search") as said:
        search.fit(x, y)
    assert sum("chosen by a search" in str(estimator.message) for estimator in said) == 1
    assert len(search.best_estimator_.certificate_.not_valid) == 1
