"""Federated learning with scikit-learn's habits."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedstill as fs
from fedstill.core.errors import FedstillError

SMALL: dict[str, Any] = {"rounds": 3, "clients": 2, "workers": "inline"}


@parametrize_with_checks([fs.FederatedClassifier(**SMALL)])
def test_it_is_an_estimator_by_all_of_scikit_learn_s_own_checks(estimator: Any, check: Any) -> None:
    """No check is expected to fail: `sites` is optional, so a plain `fit(X, y)` is as good as any classifier's."""
    check(estimator)


@pytest.fixture(scope="module")
def iris() -> tuple[Any, Any]:
    x, y = load_iris(return_X_y=True)
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


def test_every_site_is_a_client_and_labels_keep_their_names(iris: tuple[Any, Any]) -> None:
    x, y = iris
    sites = np.where(np.arange(len(y)) % 3 == 0, "Basel", np.where(np.arange(len(y)) % 3 == 1, "Bern", "Zurich"))
    model = fs.FederatedClassifier(fs.FedAvg(lr=0.1, epochs=3), rounds=5, workers="inline").fit(x, y, sites=sites)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert len(model.result_.per_client("overall")) == 3
    assert model.score(x, y) > 0.8
    shares = model.predict_proba(x)
    assert shares.shape == (150, 3)
    assert np.allclose(shares.sum(1), 1)
    assert (model.classes_[shares.argmax(1)] == model.predict(x)).all()


def test_a_seed_decides_and_a_clone_is_the_same(iris: tuple[Any, Any]) -> None:
    x, y = iris
    first = fs.FederatedClassifier(random_state=3, alpha=0.5, **SMALL)
    same = clone(first).fit(x, y).predict_proba(x)
    assert (first.fit(x, y).predict_proba(x) == same).all()
    assert (clone(first).set_params(random_state=4).fit(x, y).predict_proba(x) != same).any()


def test_settings_reach_the_experiment_and_wrong_ones_are_refused(iris: tuple[Any, Any]) -> None:
    x, y = iris
    kept = fs.FederatedClassifier(local_test=0.5, settings={"metric": "macro-f1"}, **SMALL).fit(x, y)
    assert kept.result_.experiment["local_test"] == 0.5
    assert kept.result_.experiment["metric"] == "macro-f1"
    with pytest.raises(FedstillError, match="rounds = 0"):
        fs.FederatedClassifier(rounds=0, clients=2).fit(x, y)


def test_images_without_a_channel_are_predicted_as_they_were_learnt() -> None:
    """Dark and bright images, N×H×W: the answers are those of the model, which takes N×1×H×W."""
    y = np.arange(40) % 2
    x = np.random.default_rng(1).uniform(0, 0.4, (40, 8, 8)) + y[:, None, None] / 2
    model = fs.FederatedClassifier(fs.FedAvg(lr=0.1), model="resnet8-slim", **SMALL).fit(x, y)
    assert (model.predict(x) == model.model_.predict(x[:, None])).all()
    assert model.score(x, y) == 1


def test_a_column_that_float32_rounds_away_is_warned_of(iris: tuple[Any, Any]) -> None:
    x, y = iris
    with pytest.warns(UserWarning, match="column 'column 2': numbers near 1e\\+09 are kept in steps of 64"):
        fs.FederatedClassifier(**SMALL).fit(x + np.array([0, 0, 1e9, 0]), y)
