"""FedKF's table IX, counted."""

import pytest

from fedstill.core.method import methods
from fedstill.experiment.config import experiment
from fedstill.experiment.passes import passes

TABLE_IX = {
    "fedavg": (1, 1, 0, 0),
    "fedprox": (1, 1, 0, 0),
    "fedgkd": (2, 1, 0, 0),
    "q-ffl": (1, 1, 0, 0),
    "fedkf-minus": (3, 3, 1, 1),
    "fedkf": (3, 3, 1, 1),
}


@pytest.mark.parametrize("name", [name for name in TABLE_IX if name in methods])
def test_as_the_paper_counts(name: str) -> None:
    """Two rounds: FedGKD has a teacher from the second on. q-FFL's look at its loss comes once a turn, not a batch."""
    plan = experiment(
        {"method": {"name": name, "batch": 16}, "data": "digits", "samples": 300, "clients": 2, "rounds": 2}
    )
    assert tuple(passes(plan).values()) == TABLE_IX[name]


def test_features_fed_to_the_head_alone_are_half_a_pass() -> None:
    """FedGen, generated batches of 16 beside real ones of 16: the head sees 1 real and 2 generated batches (one of
    them without gradient), the first layer 1: forward (1 + 3)/2 = 2, backward (1 + 2)/2 = 1.5; 2 of the generator."""
    method = {"name": "fedgen", "batch": 16, "generator_batch": 16, "generator_steps": 1}
    plan = experiment({"method": method, "data": "digits", "samples": 300, "clients": 2, "rounds": 2})
    assert tuple(passes(plan).values()) == (2, 1.5, 2, 0)
