"""Gathers with every method: they work where their field is sent, and are refused in one line where it is not.

Weight gathers (T1, robust rules) need uploads that carry weights, FedTKD's identification public logits. Methods whose
clients send neither (prototypes, class logits) have no gather, and say so.
"""

from dataclasses import fields
from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method

import fedstill.methods  # noqa: F401 (registers them)
from fedstill.core.errors import UsageError
from fedstill.core.loop import rounds
from fedstill.core.method import methods
from fedstill.core.record import Carries, field_carrying
from fedstill.core.shelf import Storage
from fedstill.experiment.run import active, transport
from fedstill.experiment.stage import stage

WEIGHTS: dict[str, Any] = {
    "remember": "remember",
    "multi-krum": "multi-krum",
    "median": "median",
    "chain": {"name": "chain", "gathers": ["nearest-neighbour-mixing", "multi-krum", "trimmed-mean", "remember"]},
}
NO_GLOBAL_MODEL = {("lg-fedavg", "remember"), ("lg-fedavg", "chain")}
"""T1 reports a global model; LG-FedAvg has a global head only."""


def has_gather(name: str) -> bool:
    return any(f.name == "gather" for f in fields(methods[name]))


def fits(name: str, gather: str) -> bool:
    """What follows from what a method's clients send."""
    wanted = Carries.LOGITS if gather == "identify" else Carries.WEIGHTS
    sends = has_gather(name) and field_carrying(small_method(name).gathered(), wanted) is not None
    return sends and (name, gather) not in NO_GLOBAL_MODEL


EVERY = [(name, gather) for name in sorted(methods) for gather in (*WEIGHTS, "identify")]
PLAN = {"clients": 4, "active": 1.0, "samples": 80, "rounds": 1, "model": "mlp"}


@pytest.mark.parametrize(("name", "gather"), [pair for pair in EVERY if not fits(*pair)])
def test_a_gather_that_cannot_work_is_refused_in_one_line(name: str, gather: str) -> None:
    with pytest.raises(UsageError) as refused:
        small_experiment({"name": name, "gather": WEIGHTS.get(gather, gather)}, **PLAN)
    assert "\n" not in str(refused.value)
    if has_gather(name):
        assert str(refused.value).startswith(f"gather = {gather if name != 'lg-fedavg' else ''}")
    else:
        assert str(refused.value).startswith("gather = ")
        assert f"{name} has no gather" in str(refused.value)


@pytest.mark.parametrize("name", [name for name in sorted(methods) if fits(name, "multi-krum")])
def test_weight_gathers_work_on_what_a_round_brings(name: str) -> None:
    """Mixed, chosen (three of four), trimmed, remembered: models are finite, and each gather reports its part."""
    gather = WEIGHTS["chain" if fits(name, "remember") else "multi-krum"]
    models, facts = played(name, gather)
    assert set(facts["trusted"]) < set(facts["answered"]) == {0, 1, 2, 3}
    assert len(facts["trusted"]) == 3, "one of four may be forged"
    if fits(name, "remember"):
        assert "overall" in models
        assert "overall_drift" in facts


@pytest.mark.parametrize("name", [name for name in sorted(methods) if fits(name, "identify")])
def test_identification_works_on_what_a_round_brings(name: str) -> None:
    _, facts = played(name, "identify")
    assert set(facts["trusted"]) <= set(facts["answered"]) == {0, 1, 2, 3}


def played(name: str, gather: Any) -> tuple[Any, Any]:
    """The global models and the facts after one round of four clients."""
    plan = small_experiment(small_method(name, gather=gather), **PLAN)
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        done = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1))
    env = ready.env.at(0)
    models = plan.method.models(env, done.server)
    assert all(torch.isfinite(t).all() for w in models.values() for t in w.values() if t.is_floating_point())
    return models, plan.method.facts(env, done.server)
