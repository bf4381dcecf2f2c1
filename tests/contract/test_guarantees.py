"""Privacy, secure sums and compression around every method: each composes, or is refused in one line."""

from typing import Any

import pytest
from smallest import small_experiment, small_method

pytest.importorskip("opacus")
pytest.importorskip("Crypto")

from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.core.turn import ledger
from fedstill.experiment.run import start
from fedstill.experiment.shorthand import wrapped

ASKED: dict[str, dict[str, Any]] = {
    "samples": {"private": "epsilon=8,delta=1e-3"},
    "clients": {"private": "clients,epsilon=8"},
    "sums": {"secure_sums": True},
    "fewer bytes": {"compress": "quantise"},
}
SECOND_WAVE = {
    "fedntd": "samples, clients, sums, fewer bytes",
    "fedlc": "clients, sums, fewer bytes",
    "feddyn": "samples, fewer bytes",
    "fedproto": "",
    "fedtgp": "",
    "fedgh": "",
    "fml": "samples, clients, sums, fewer bytes",
    "fedkd": "",
    "lg-fedavg": "samples, clients, sums, fewer bytes",
    "ds-fl": "samples",
    "fedhkd": "",
    "dense": "samples, fewer bytes",
    "co-boosting": "samples, fewer bytes",
}
FIRST_WAVE = {
    "ccvr": "samples",
    "centralised": "",
    "dafkd": "samples",
    "fedavg": "samples, clients, sums, fewer bytes",
    "feddf": "samples, fewer bytes",
    "feddistill": "samples",
    "feddistill-plus": "samples",
    "fedftg": "samples",
    "fedgen": "",
    "fedgkd": "samples, clients, sums, fewer bytes",
    "fedhe": "samples",
    "fedkf": "samples, clients, sums, fewer bytes",
    "fedkf-minus": "samples, clients, sums, fewer bytes",
    "fedmd": "samples",
    "fedmgda-plus": "samples, fewer bytes",
    "fednova": "samples",
    "fedprox": "samples, clients, sums, fewer bytes",
    "fedrad": "clients, sums, fewer bytes",
    "fedsteady": "",
    "fedtkd": "samples",
    "local": "",
    "moon": "samples, clients, sums, fewer bytes",
    "q-ffl": "samples",
    "scaffold": "samples, clients, sums, fewer bytes",
}
"""What can be asked of each; the rest is refused."""


def plan_of(name: str, asked: str, **settings: Any) -> Any:
    return small_experiment(small_method(name), wrappers=wrapped(**ASKED[asked]), **settings)


def given(name: str, asked: str) -> tuple[Any, str]:
    """The plan, or None and why it is refused."""
    try:
        return plan_of(name, asked), ""
    except UsageError as error:
        return None, str(error)


@pytest.mark.parametrize("name", list(methods))
def test_a_guarantee_is_given_field_by_field_or_refused_in_one_line(name: str) -> None:
    """Where it is given, the ledger has a word on every field that leaves."""
    for asked in ASKED:
        plan, why = given(name, asked)
        assert (plan is not None) == (asked in {**FIRST_WAVE, **SECOND_WAVE}[name].split(", ")), (asked, why)
        if plan is None:
            assert why.startswith("wrappers = ")
            assert "\n" not in why
            continue
        for field, told in ledger(plan.method, plan.wrappers).items():
            assert ";" in told or told == "a counter", (asked, field, told)


@pytest.mark.parametrize(("name", "works"), SECOND_WAVE.items())
def test_methods_of_the_second_wave_run_with_what_they_can_be_given(name: str, works: str) -> None:
    for asked in ASKED:
        if asked not in works.split(", "):
            with pytest.raises(UsageError, match="wrappers = "):
                plan_of(name, asked)
            continue
        (row,) = start(plan_of(name, asked, rounds=1, clients=3, active=1.0, samples=200), out=None).rows
        assert row["missing"] == {}
        facts = row["facts"]
        if asked == "samples":
            assert len(facts["epsilon_spent"]) == 3
            assert 7 < max(facts["epsilon_spent"].values()) <= 8
        if asked == "clients":
            assert 7 < facts["epsilon_clients"] <= 8
        if asked == "sums":
            assert 0 < facts["sum_error"] < 1e-6
        if asked == "fewer bytes":
            assert row["bytes"]["up"].keys() == {"codes", "key", "version"}


def test_what_was_promised_of_weights_is_told_of_their_codes_too() -> None:
    plan = small_experiment(small_method("fedavg"), wrappers=wrapped("epsilon=8", compress="quantise,width=4"))
    told = ledger(plan.method, plan.wrappers)["codes"]
    assert "covered: (ε ≤ 8" in told
    assert told.endswith("4 bits a weight")


def test_a_promise_is_called_partial_where_another_field_tells_without_noise() -> None:
    """CCVR's weights are trained with noise, but its class means are not noised, and the server uses both."""
    plan = small_experiment(small_method("ccvr"), wrappers=wrapped("epsilon=8"))
    told = ledger(plan.method, plan.wrappers)
    assert "by itself: means, covariances, counts tell without noise" in told["weights"]
    assert told["means"].endswith("not covered: computed from the samples")


def test_private_samples_cannot_be_the_public_set() -> None:
    with pytest.raises(UsageError, match="public = train: no noise is counted on the public set"):
        small_experiment(small_method("feddf"), public="train", wrappers=wrapped("epsilon=8"))
