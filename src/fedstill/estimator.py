"""Federated learning with scikit-learn's habits: `fit`, `predict`, `predict_proba`, `score`, `get_params`, pipelines.

FederatedClassifier("fedkf", rounds=20).fit(X, y, sites=hospital).score(X_new, y_new)
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedstill.core.method import Method
from fedstill.data.forms import About, coarse, kind_name
from fedstill.experiment.ready import load_model
from fedstill.experiment.run import run

CHUNK = 1000
"""Samples that a model answers for at once."""


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained by clients who keep their samples.

    Args:
        method: a method with its settings (`fs.FedKF(lr=0.05)`), or its name.
        rounds: rounds of communication.
        clients: how many clients share the samples where `fit` is not told of sites.
        alpha: how alike these clients are: Dirichlet's α, small is unlike. None: the samples are dealt at random.
        active: share (≤ 1) or number (> 1) of clients active in a round.
        model: a model's name, `package.module:factory`, or a torch module; auto: by the kind of the data.
        local_test: share of each client's samples that is kept back, so that `result_` tells how clients are served. 0:
            all samples train, and `result_` tells of them.
        workers: worker processes (auto: one for each core), inline, or threads; never changes the result.
        random_state: seed of every random stream; a RandomState draws one.
        settings: any other settings of the experiment, by name.

    After `fit`: `classes_`, `n_features_in_`, `model_` (a torch module that takes raw inputs) and `result_` (the run's
    `Result`: metrics of every client, and what left them).
    """

    def __init__(
        self,
        method: Method[Any, Any, Any, Any] | str = "fedavg",
        *,
        rounds: int = 20,
        clients: int = 10,
        alpha: float | None = None,
        active: float = 1.0,
        model: Any = "auto",
        local_test: float = 0.0,
        workers: str = "auto",
        random_state: Any = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.clients = clients
        self.alpha = alpha
        self.active = active
        self.model = model
        self.local_test = local_test
        self.workers = workers
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:  # noqa: N803 (scikit-learn's name)
        """Train on the samples `X` with labels `y`; `sites` says who holds each, and every site is a client.

        `X` may have more than two dimensions: images N×C×H×W or N×H×W, series N×C×T. Returns the estimator itself.
        """
        X, y = validate_data(self, X, y, allow_nd=True)  # noqa: N806
        for line in coarse(X, kind_name(_stored(X)), About()):
            warnings.warn(line, stacklevel=2)
        X = _stored(X)  # noqa: N806
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}: a classifier needs at least two classes")
        with TemporaryDirectory(prefix="fedstill-") as room:
            result = run(self.method, data=self._data(X, labels, sites), out=room, name="fit", **self._plan(sites))
            self.model_ = load_model(
                Path(room) / "fit", **({} if isinstance(self.model, str) else {"model": self.model})
            )
        self.result_ = replace(result, run_dir=None)
        return self

    def _data(self, X: NDArray[Any], labels: NDArray[Any], sites: Any) -> dict[str, Any]:  # noqa: N803
        arrays = {"x_train": X, "y_train": labels, "classes": self.classes_.astype(str)}
        if sites is not None:
            arrays["site_train"] = column_or_1d(sites)
        tests = {} if self.local_test else {name.replace("train", "test"): values for name, values in arrays.items()}
        return {**tests, **arrays}

    def _plan(self, sites: Any) -> dict[str, Any]:
        dealt = {"partition": "iid"} if self.alpha is None else {"alpha": self.alpha}
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        return {
            "rounds": self.rounds,
            "active": self.active,
            "model": self.model,
            "local_test": self.local_test,
            "workers": self.workers,
            "seed": int(seed),
            "evaluate_every": self.rounds,
            "progress": False,
            **({} if sites is not None else {"clients": self.clients, **dealt}),
            **(self.settings or {}),
        }

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of every class, in the order of `classes_`, for each of the samples `X`."""
        check_is_fitted(self)
        X = validate_data(self, X, allow_nd=True, reset=False)  # noqa: N806
        self.model_.eval()
        with torch.no_grad():
            parts = [self.model_(part) for part in torch.split(self.model_.raw(_stored(X)), CHUNK)]
        shares: NDArray[np.float64] = torch.softmax(torch.cat(parts).double(), -1).numpy()
        return shares

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The likeliest class of each of the samples `X`."""
        check_is_fitted(self)
        chosen: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return chosen


def _stored(samples: NDArray[Any]) -> NDArray[Any]:
    """The samples as models take them: bytes of a picture as they are, other numbers as 32-bit floats."""
    return samples if samples.dtype == np.uint8 else samples.astype(np.float32)
