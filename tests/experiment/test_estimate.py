"""How long runs will take: what is measured once, and what is made of it."""

from typing import Any

import pytest

from fedstill.core.loop import admit
from fedstill.experiment import estimate
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.estimate import Costs
from fedstill.parts.gather import Update

PLAN = {"method": {"name": "fedtkd", "batch": 64, "epochs": 1}, "data": "digits", "public": 0.1, "evaluate_every": 5}


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The plans that were measured; each costs the same."""
    measured: list[Experiment] = []

    def costs(plan: Experiment) -> Costs:
        measured.append(plan)
        return Costs(turn=1.0, step=0.1, serving=2.0, exam=3.0, models=0, samples=1280)

    monkeypatch.setattr(estimate, "_measured", costs)
    monkeypatch.setattr(estimate, "_known", {})
    return measured


def test_a_round_is_its_turns_the_server_and_its_share_of_an_exam(probes: list[Experiment]) -> None:
    """10 clients of 128 samples, 2 steps each: 10 · (1 + .2) + 2, and every fifth round 10 exams of 3: 6 a round; 20.

    20 clients of 64 samples, one step each: 20 · 1.1 + 2 + 12 = 36, without another measurement.
    """
    ten, twenty = (experiment({**PLAN, "clients": count, "active": 1.0}) for count in (10, 20))
    assert estimate.round_seconds(ten) == pytest.approx(20.0)
    assert estimate.round_seconds(twenty) == pytest.approx(36.0)
    assert len(probes) == 1


def test_who_takes_part_needs_no_other_probe_but_what_a_turn_does(probes: list[Experiment]) -> None:
    gather: dict[str, Any] = {"name": "identify", "margin": 0.0, "centred": False}
    for change in (
        {},
        {"seed": 2, "rounds": 3, "partition": {"name": "iid"}},
        {"method": {**PLAN["method"], "lr": 0.5, "gather": gather}},  # type: ignore[dict-item]
        {"attack": "logit-flip", "malicious": [1]},
    ):
        estimate.round_seconds(experiment({**PLAN, **change}))
    assert len(probes) == 1
    estimate.round_seconds(experiment({**PLAN, "method": {"name": "fedmd", "batch": 64, "epochs": 1}}))
    estimate.round_seconds(experiment({**PLAN, "model": "mlp"}))
    assert len(probes) == 3


def test_a_small_probe_of_the_public_set_stands_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits has some 1,400 samples to train on: the probe takes 128 and 256 of the public ones, never more."""
    seen: list[int] = []
    real = estimate._every

    def watched(samples: Any, count: int) -> Any:
        seen.append(count)
        chosen = real(samples, count)
        assert len(chosen) == count
        assert len(set(chosen.y.tolist())) == 10, "evenly chosen: every class is there"
        return chosen

    monkeypatch.setattr(estimate, "_every", watched)
    monkeypatch.setattr(estimate, "_known", {})
    plan = experiment({**PLAN, "public": 0.5, "clients": 4, "model": "mlp"})
    assert estimate.round_seconds(plan) > 0
    assert seen == [128, 256]


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"name": "fedavg"}, "model": "mlp", "wrappers": ["quantise"]},
        {"method": {"name": "feddf", "distill_steps": 1}, "models": ["mlp", "resnet8-slim"]},
    ],
    ids=["compressed", "two networks"],
)
def test_the_probe_s_server_gets_what_a_round_s_would(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened uploads, one of each of four clients, in its own network; none of them is refused."""
    admitted: list[int] = []

    def watched(*given: Any) -> Any:
        good, missing = admit(*given)
        assert not missing
        assert all(isinstance(reply.upload, Update) for reply in good)
        admitted.append(len(good))
        return good, missing

    monkeypatch.setattr(estimate, "admit", watched)
    monkeypatch.setattr(estimate, "_known", {})
    plan = {"data": "digits", "samples": 300, "clients": 4, "active": 1.0, **change}
    assert estimate.round_seconds(experiment(plan)) > 0
    assert set(admitted) == {4}
