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
from cop2l.kernel.exact import withheld_rows
from cop2l.models import build
from cop2l.sklearn import CertifiedClassifier

FEW = {"epochs": 2}
PICK = {"max_iterations": 2}
EXPECTED_FAILURES = {
    "check_fit_score_takes_y": "it calls partial_fit after fit, whose certificate is for one task, fixed in advance"
}


@parametrize_with_checks([CertifiedClassifier()], expected_failed_checks=lambda _: EXPECTED_FAILURES)
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
    classifier = CertifiedClassifier(random_state=3).fit(x[:1000], y[:1000])
    (bound,) = classifier.certificate_.bounds.values()
    error = 1 - classifier.score(x[1000:], y[1000:])
    assert error < bound < 0.25
    assert classifier.certificate_.records[0]["rows"] == withheld_rows(1000, 1, 0.5, 3).sum()
    chances = classifier.predict_proba(x[1000:])
    assert chances.shape == (797, 10)
    assert np.allclose(chances.sum(1), 1)
    assert (classifier.classes_[chances.argmax(1)] == classifier.predict(x[1000:])).all()


def test_partial_fit_learns_a_task_per_call(digits):
    x, y = digits
    classes, classifier = np.unique(y), CertifiedClassifier(memory=300)
    tasks = [np.isin(y, classes[i : i + 5]) for i in (0, 5)]
    for rows in tasks:
        classifier.partial_fit(x[rows], y[rows], classes)
    certificate = classifier.certificate_
    assert (certificate.kind, sorted(certificate.bounds)) == ("holdout", [1, 2])
    assert certificate.records[0]["rows"] == 300  # those that are kept: the data of the first task was gone
    assert classifier.score(x, y) > 0.8
    assert clone(classifier).get_params()["memory"] == 300


def test_wrong_calls_are_one_sentence(digits):
    x, y = digits[0][:80], digits[1][:80]
    with pytest.raises(NotFittedError):
        CertifiedClassifier().predict(x)
    assert not hasattr(CertifiedClassifier(), "certificate_")
    with pytest.raises(UserError, match="first call of partial_fit needs classes="):
        CertifiedClassifier().partial_fit(x, y)
    begun = CertifiedClassifier(options=FEW).partial_fit(x, y, np.unique(digits[1]))
    with pytest.raises(UserError, match="differ from those of the first call"):
        begun.partial_fit(x, y, ["a", "b"])
    with pytest.raises(UserError, match="the label 'cat'"):
        begun.partial_fit(x, np.array(["cat"] * 80))
    with pytest.raises(UserError, match="begin with partial_fit"):
        CertifiedClassifier(options=FEW).fit(x, y).partial_fit(x, y, np.unique(y))
    assert begun.learner_.tasks_seen == 1


@pytest.mark.parametrize("method", ["weighted-replay", "cop2l"])
def test_what_cannot_be_certified_is_not_learned(digits, method, monkeypatch):
    """Else the same call again would learn the data twice, and no bound would hold."""
    x, y = digits[0][:300], digits[1][:300]
    classifier = CertifiedClassifier(
        method=method, memory=50, options=FEW | (PICK if method == "cop2l" else {})
    )
    classifier.partial_fit(x[:150], y[:150], np.unique(y))
    issued, predicted = classifier.certificate_, classifier.predict_proba(x)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(classifier.learner_), "certify", interrupted)
        with pytest.raises(KeyboardInterrupt):
            classifier.partial_fit(x[150:], y[150:])
    assert classifier.learner_.tasks_seen == 1
    assert classifier.certificate_.content == classifier.learner_.certificate.content == issued.content
    assert (classifier.predict_proba(x) == predicted).all()
    classifier.partial_fit(x[150:], y[150:])
    assert classifier.learner_.tasks_seen == len(classifier.certificate_.bounds) == 2


def test_cop2l_certifies_itself_by_all_its_examples(digits):
    x, y = digits[0][:300], digits[1][:300]
    classifier = CertifiedClassifier(method="cop2l", memory=200, options=PICK)
    for rows in (slice(0, 150), slice(150, 300)):
        classifier.partial_fit(x[rows], y[rows], np.unique(y))
    assert {s["task"]: s["kind"] for s in classifier.certificate_.statements} == {
        1: "buffer",
        2: "preference",
    }
    assert [record["rows"] for record in classifier.certificate_.records] == [150, 150]


def test_a_first_call_that_failed_may_be_corrected(digits):
    x, y = digits[0][:150], digits[1][:150]
    classifier = CertifiedClassifier(memory=50, options=FEW)
    with pytest.raises(UserError, match="not among the classes"):
        classifier.partial_fit(x, y, np.unique(y)[1:])
    assert classifier.partial_fit(x, y, np.unique(y)).learner_.tasks_seen == 1


def test_parameters_clones_pipelines_and_own_models(digits):
    x, y = digits[0][:200] * 16, digits[1][:200]
    model = build("linear", inputs=(64,), classes=10, seed=5)
    before = model.head.weight.clone()
    found = CertifiedClassifier(model, options=FEW, random_state=np.random.RandomState(0))
    assert clone(found).get_params().keys() == {
        *("model", "method", "holdout", "memory", "delta", "options", "random_state")
    }
    pipe = make_pipeline(FunctionTransformer(lambda values: values / 16), found)  # a scale known beforehand
    pipe.fit(x, y)
    assert (model.head.weight == before).all()
    assert pipe[-1].n_features_in_ == 64
    pipe.set_params(certifiedclassifier__delta=0.2)
    first = pipe[-1].certificate_.bounds[1]
    assert (
        clone(pipe).set_params(certifiedclassifier__random_state=0).fit(x, y)[-1].certificate_.options.delta
        == 0.2
    )
    assert 0 < first <= 1


def test_frames_keep_their_names(digits):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(digits[0][:200], columns=[f"p{i}" for i in range(64)])
    classifier = CertifiedClassifier(options=FEW).fit(frame, pandas.Series(digits[1][:200]))
    assert list(classifier.feature_names_in_[:2]) == ["p0", "p1"]
    plain = CertifiedClassifier(options=FEW).fit(digits[0][:200], digits[1][:200])
    assert (classifier.predict_proba(frame) == plain.predict_proba(digits[0][:200])).all()


def test_learned_examples_decide_the_scale():
    x, y = load_wine(return_X_y=True)
    classifier = CertifiedClassifier().fit(x, y)
    assert classifier.learner_.description["scale"] == "fitted"
    assert classifier.score(x, y) > 0.95
    assert classifier.certificate_.bounds[1] < 0.2


@pytest.mark.parametrize("within", [lambda one: one, lambda one: make_pipeline(FunctionTransformer(), one)])
def test_advice_points_at_the_line_that_called(within):
    x, y = load_wine(return_X_y=True)
    with pytest.warns(Advice) as found:
        within(CertifiedClassifier(method="cop2l", options={"lr": 1e-6})).fit(x, y)
    assert {warning.filename for warning in found if warning.category is Advice} == {__file__}


def test_a_call_per_epoch_has_no_bound(digits):
    x, y = digits[0][:200], digits[1][:200]
    classifier = CertifiedClassifier(memory=50, options=FEW)
    for _ in range(2):
        classifier.partial_fit(x, y, np.unique(y))
    assert set(classifier.certificate_.bounds.values()) == {1.0}
    assert "are rows that task 2 learned from" in classifier.certificate_.not_valid[0]


def test_a_fitted_step_and_a_search_are_said(digits):
    x, y = digits[0][:200], digits[1][:200]
    few = CertifiedClassifier(options=FEW)
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
