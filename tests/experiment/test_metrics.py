"""Metrics against the paper's own examples."""

import numpy as np
import pytest

from fedstill.experiment.metrics import amp, fm, mixtures, rounds_to, wlp
from fedstill.parts.identification import identification


def test_the_papers_table_of_three_clients() -> None:
    """FedKF, definitions 1–3: .6 .7 .8 give .7, .00667, .6; .65 .65 .8 give .7, .005, .65."""
    first, second = [0.6, 0.7, 0.8], [0.65, 0.65, 0.8]
    assert (amp(first, [1, 1, 1]), fm(first), wlp(first)) == pytest.approx((0.7, 0.02 / 3, 0.6))
    assert (amp(second, [1, 1, 1]), fm(second), wlp(second)) == pytest.approx((0.7, 0.005, 0.65))


def test_amp_weighs_by_samples_and_clients_without_a_test_are_left_out() -> None:
    """(.5·30 + 1·10)/40 = .625; the mean of .5 and 1 is .75, so FM = .25² = .0625."""
    accuracies = [0.5, None, 1.0]
    assert amp(accuracies, [30, 0, 10]) == 0.625
    assert fm(accuracies) == 0.0625
    assert wlp(accuracies) == 0.5


def test_mixtures_are_never_below_the_worst_client() -> None:
    found = mixtures([0.3, None, 0.9, 0.6], 200, np.random.default_rng(0))
    assert len(found) == 200
    assert 0.3 <= min(found) < max(found) <= 0.9


def test_rounds_to_target_and_never() -> None:
    assert rounds_to([0.1, None, 0.6, 0.5], 0.55) == 3
    assert rounds_to([0.1], 0.55) is None


def test_identification_by_hand() -> None:
    """Shut out 0, 2, 4; malicious 0, 2, 5: two of three shut out are malicious, two of three malicious are shut out."""
    found = identification(trusted=[1, 3, 5], answered=[0, 1, 2, 3, 4, 5], malicious=[0, 2, 5])
    assert found == {"precision": pytest.approx(2 / 3), "recall": pytest.approx(2 / 3)}
    assert identification([0, 1], [0, 1], [7]) == {"precision": 1.0, "recall": 1.0}
