"""A scikit-learn classifier with a certificate: `pip install 'cop2l[data]'`."""

import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Self

import numpy as np
from torch import nn

from cop2l.certificates.certificate import Certificate
from cop2l.errors import UserError, missing_extra
from cop2l.holdout.holdout import Holdout
from cop2l.learner import advice
from cop2l.learner.cop2l import CoP2L
from cop2l.methods import method
from cop2l.models import build

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils import check_random_state, get_tags
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise missing_extra("scikit-learn 1.6 or newer", "data", "cop2l.sklearn") from None


class CertifiedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with a certificate: `fit` learns one task, and every `partial_fit` learns one more.

    `certificate_` bounds the true error on every task, under the assumptions that it lists. They do not hold if an earlier step
    of a pipeline (a scaler, a selection of features) was fitted on the same examples: fit it on others.
    """

    def __init__(
        self,
        model: str | nn.Module = "mlp",
        *,
        method: str = "weighted-replay",
        holdout: float = 0.5,
        memory: int = 2000,
        delta: float = 0.05,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        """Set the parameters.

        Args:
            model: A name of `cop2l list models`, or an nn.Module, which is copied.
            method: A name of `cop2l list methods`. "cop2l" certifies itself; any other is certified by withheld rows.
            holdout: The share of each task that is withheld to certify a method other than CoP2L.
            memory: The number of examples of past tasks that are kept, and of their withheld rows.
            delta: The probability that a certificate may fail.
            options: Other options of the method.
            random_state: The seed, or a random state that gives one.
        """
        self.model, self.method, self.holdout, self.memory = model, method, holdout, memory
        self.delta, self.options, self.random_state = delta, options, random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn one task and certify it; earlier tasks are forgotten."""
        X, y = self._checked(X, y, reset=True)
        self._begin(unique_labels(y), X, tasks=1)
        return self._learn(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more task and certify all tasks.

        Args:
            X: The inputs of the task.
            y: Its labels.
            classes: All classes that will ever come; the first call needs them.
        """
        first = not hasattr(self, "learner_") or not self.learner_.tasks_seen
        if not first and self.learner_.options.tasks == 1:
            raise UserError(
                "fit certified its one task, and there is no other; begin with partial_fit on a clone."
            )
        if first and classes is None:
            raise UserError("The first call of partial_fit needs classes=, all classes that will ever come.")
        X, y = self._checked(X, y, reset=first)
        if first:
            self._begin(unique_labels(classes), X, tasks=None)
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            raise UserError("classes= differ from those of the first call of partial_fit; leave them out.")
        return self._learn(X, y)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each example."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.learner_.predict(self._inputs(X)).numpy()])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The softmax of the logits, in the order of `classes_`; nothing is certified of these numbers."""
        check_is_fitted(self)
        return np.asarray(self.learner_.probabilities(self._inputs(X)).numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, np.ndarray]:
        rows = {"accept_sparse": "csr", "dtype": np.float32, "ensure_min_samples": 2}
        X, y = validate_data(self, X, y, reset=reset, **rows)
        check_classification_targets(y)
        return X, y

    def _inputs(self, X: Any) -> Any:
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    def _begin(self, classes: np.ndarray, X: Any, tasks: int | None) -> None:
        """Make the learner."""
        is_seed = isinstance(self.random_state, int | np.integer)
        seed = int(self.random_state if is_seed else check_random_state(self.random_state).randint(2**31))
        self.classes_ = classes
        model = deepcopy(self.model)
        if isinstance(model, str):
            model = build(model, inputs=(X.shape[1],), classes=len(classes), seed=seed)
        reasons = list(_invalid_reasons())
        advice.warn_user(reasons)
        claimed = {"tasks": tasks, "delta": self.delta, "not_valid": reasons}
        options = {"memory": self.memory, "seed": seed, **(self.options or {})}
        if self.method == "cop2l":
            self.learner_: Any = CoP2L(model, **claimed, **options)  # type: ignore[arg-type]
        else:
            learner = method(self.method)(model, **options)
            self.learner_ = Holdout(learner, holdout=self.holdout, keep_withheld=self.memory, **claimed)  # type: ignore[arg-type]

    def _learn(self, X: Any, y: np.ndarray) -> Self:
        newest, before = (X, self._numbers(y)), deepcopy(self.learner_)
        try:
            self.learner_.learn(*newest)
            is_picking = self.method == "cop2l"
            self.certificate_: Certificate = self.learner_.certify(
                {self.learner_.tasks_seen: newest} if is_picking else None
            )
        except BaseException:
            self.learner_ = before  # if certifying fails, the task is not learned either: a second call would learn it twice
            raise
        return self

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        """The numbers of labels in `classes_`."""
        numbers = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if unknown_labels := sorted(set(y[self.classes_[numbers] != y].tolist())):
            raise UserError(
                f"y has the label {unknown_labels[0]!r}, which is not among the classes of the first call."
            )
        return np.asarray(numbers, np.int64)


def _invalid_reasons() -> Iterator[str]:
    """Why no certificate holds, as the callers of `fit` show: a fitted step of a pipeline, or a search for settings."""
    frame, is_search = sys._getframe(1), None
    while frame.f_back is not None:
        frame = frame.f_back
        module, caller = frame.f_globals.get("__name__", ""), frame.f_locals.get("self")
        steps = caller.steps[:-1] if module == "sklearn.pipeline" and isinstance(caller, Pipeline) else ()
        for name, step in steps:
            is_estimator = isinstance(step, BaseEstimator) and not isinstance(step, FrozenEstimator)
            if is_estimator and get_tags(step).requires_fit:
                yield (
                    f"The step {name!r} of the pipeline is fitted on the examples that certify; fit it on others and freeze it "
                    "(FrozenEstimator)."
                )
        if is_search is None and module.startswith("sklearn.model_selection."):
            # Only the fit of the best settings is called from _search; the fits before it are called from _validation.
            is_search = module.endswith("_search")
    if is_search:
        yield "The settings were chosen by a search on the examples that certify; search on others, and fit the best ones here."
