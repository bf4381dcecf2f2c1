"""Attacks made together, and the backdoor: by hand, and at work."""

from statistics import NormalDist
from typing import Any

import pytest
import torch
from smallest import small_experiment
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.shelf import Storage
from fedstill.data.kinds import Image
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg
from fedstill.parts.averaging import Broadcast
from fedstill.parts.backdoor import Backdoor
from fedstill.parts.collusion import ALittleIsEnough, Collusion, InnerProduct, Mimic
from fedstill.parts.gather import Changed, Update

ENV = Env(seed=1, sizes=(10,) * 5, classes=2, kind=Image((1, 1, 1)), build=lambda k, s: torch.nn.Linear(1, 1))


def conspired(attack: Collusion, honest: dict[int, float], bad: dict[int, float], start: float = 1.0) -> list[float]:
    """What each client's one weight is after the attack; w_t is `start`."""
    replies: list[Reply[Any]] = [
        Reply(k, 10, Update({"w": tensor([v]), "n": tensor(7), "bn.running_var": tensor([2.0])}))
        for k, v in sorted({**honest, **bad}.items())
    ]
    down = Broadcast({"w": tensor([start]), "n": tensor(0), "bn.running_var": tensor([9.0])})
    forged = attack.conspire(ENV, dict.fromkeys([r.client for r in replies], down), replies, set(bad))
    assert all(int(r.upload.weights["n"]) == 7 for r in forged), "counters stay"
    assert all(r.upload.weights["bn.running_var"].item() == 2.0 for r in forged), "variances stay"
    return [r.upload.weights["w"].item() for r in forged]


def test_inner_product_by_hand() -> None:
    """w_t = 1, honest 2 and 4: the mean step is 2; −½ of it: all attackers send 0. The honest stay as they are."""
    assert conspired(InnerProduct(epsilon=0.5), {0: 2.0, 2: 4.0}, {1: 9.0, 3: 9.0}) == [2.0, 0.0, 4.0, 0.0]


def test_a_little_is_enough_by_hand() -> None:
    """Honest steps 1 and 3: mean 2, deviation 1. At z = 1.5: 1 + 2 − 1.5 = 1.5."""
    assert conspired(ALittleIsEnough(z=1.5), {0: 2.0, 2: 4.0}, {1: 9.0})[1] == pytest.approx(1.5)


def test_how_far_a_little_goes_by_hand() -> None:
    """n = 50, m = 12 (near the paper's example): s = 26 − 12 = 14, Φ(z) = (38 − 14)/38 = .6316.

    n = 20, m = 4: s = 7, Φ(z) = 9/16. With n = 4, m = 3 nobody is left to hide behind: 0.
    """
    assert ALittleIsEnough().reach(50, 12) == pytest.approx(NormalDist().inv_cdf(24 / 38))
    assert ALittleIsEnough().reach(20, 4) == pytest.approx(0.1573, abs=1e-3)
    assert ALittleIsEnough().reach(4, 3) == 0.0


def test_mimic_copies_the_first_honest_client() -> None:
    assert conspired(Mimic(), {1: 2.0, 2: 4.0}, {0: 9.0, 3: 9.0}) == [2.0, 2.0, 4.0, 2.0]


def test_attackers_that_see_only_their_own_updates_use_those() -> None:
    """Their honest steps would be 2 and 4 from w_t = 1: mean 3, so 1 − 3 = −2, whatever the others do."""
    assert conspired(InnerProduct(epsilon=1.0, sees="attackers"), {0: 50.0}, {1: 3.0, 2: 5.0}) == [50.0, -2.0, -2.0]


def test_without_anybody_to_know_replies_stay() -> None:
    assert conspired(InnerProduct(), {}, {0: 3.0}) == [3.0]
    assert conspired(InnerProduct(), {0: 3.0}, {}) == [3.0]


def test_the_change_since_the_last_upload_moves_with_the_weights() -> None:
    """Where a client also tells how its weights changed: from 3 to the forged 0 is −3, so 2 becomes −1."""
    down = Broadcast({"w": tensor([1.0])})
    honest = Reply(0, 10, Changed({"w": tensor([2.0])}, {"w": tensor([1.0]).double()}, 0))
    bad = Reply(1, 10, Changed({"w": tensor([3.0])}, {"w": tensor([2.0]).double()}, 0))
    _, forged = InnerProduct(epsilon=1.0).conspire(ENV, {0: down, 1: down}, [honest, bad], {1})
    assert forged.upload.weights["w"].item() == 0.0
    assert forged.upload.change["w"].item() == -1.0


def test_networks_of_another_form_are_left_alone() -> None:
    """The second attacker's network differs: it cannot send the forged weights, and stays honest."""
    down = Broadcast({"w": tensor([1.0])})
    replies = [
        Reply(k, 10, Update(w))
        for k, w in enumerate([{"w": tensor([2.0])}, {"w": tensor([9.0])}, {"v": tensor([9.0])}])
    ]
    forged = InnerProduct(epsilon=1.0).conspire(ENV, dict.fromkeys(range(3), down), replies, {1, 2})
    assert [next(iter(r.upload.weights.values())).item() for r in forged] == [2.0, 0.0, 9.0]


PLAN: dict[str, Any] = {"clients": 10, "active": 1.0, "rounds": 3, "alpha": 100.0, "samples": 600, "evaluate_every": 3}


def test_a_strong_inner_product_brings_fedavg_to_a_halt() -> None:
    """Two of ten at ε = 10: .8 μ − .2·10 μ = −1.2 μ: every round goes back."""
    method = FedAvg(lr=0.2, epochs=3, batch=8)
    attack = {"name": "inner-product", "epsilon": 10.0}
    harmed = start(small_experiment(method, attack=attack, malicious="1,3", **PLAN), out=None)
    assert harmed.last("active")["accuracy"] < 0.3


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "fedmd"}, "attack = alie: works on model weights; this method sends none down"),
        ({"transport": "flower"}, "attack = alie: its attackers know each other's updates, so transport must be local"),
    ],
)
def test_where_it_cannot_be_made_it_is_refused(settings: dict[str, Any], line: str) -> None:
    method = settings.pop("method", "fedavg")
    with pytest.raises(UsageError, match=line):
        small_experiment({"name": method}, attack="alie", malicious="1,3", **settings)


def test_the_trigger_is_in_the_last_corner() -> None:
    """A 2×2 patch of 255 in a 4×4 image of bytes; the last two numbers of a row of floats are 1; others stay."""
    image = Backdoor(size=2).triggered(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    assert image.sum() == 4 * 255
    assert image[0, 0, 2:, 2:].min() == 255
    assert Backdoor(size=2).triggered(torch.zeros(1, 5)).tolist() == [[0.0, 0.0, 0.0, 1.0, 1.0]]
    series = Backdoor(size=2, level=5.0).triggered(torch.zeros(1, 2, 4))
    assert series.tolist() == [[[0.0, 0.0, 5.0, 5.0]] * 2]
    text = torch.tensor([[7, 8, 9, 0]], dtype=torch.int32)
    assert Backdoor(size=2).triggered(text).tolist() == [[1, 1, 9, 0]]
    with pytest.raises(UsageError, match="these samples are words"):
        Backdoor().triggered(torch.zeros(1, 4, dtype=torch.int64))


def test_the_attackers_data_and_boosted_step_by_hand() -> None:
    """Half of the samples have the trigger and label 3; with γ = 4 a step from 1 to 2 becomes one to 5."""
    ready = stage(small_experiment(FedAvg()), Storage())
    env, data = ready.env.at(0, 0), ready.party(0).data
    attack = Backdoor(target=3, share=0.5, size=2, boost=4.0)
    poisoned = attack.data(env, data)
    changed = (poisoned.x != data.x).flatten(1).any(1)
    assert int(changed.sum()) == round(0.5 * len(data))
    assert (poisoned.y[changed] == 3).all()
    assert torch.equal(poisoned.y[~changed], data.y[~changed])
    assert torch.equal(attack.data(env.at(5, 0), data).x, poisoned.x), "the same in all rounds"
    sent = attack.upload(env, Update({"w": tensor([2.0])}), Broadcast({"w": tensor([1.0])}))
    assert sent.weights["w"].item() == 5.0
    before, after = ({"w": tensor([w]), "0.running_var": tensor([v])} for w, v in ((1.0, 1.0), (2.0, 0.5)))
    sent = attack.upload(env, Update(after), Broadcast(before))
    assert {name: w.item() for name, w in sent.weights.items()} == {"w": 5.0, "0.running_var": 0.5}, "−1 is no variance"


def test_the_trap_holds_the_other_classes_with_the_trigger() -> None:
    ready = stage(small_experiment(FedAvg()), Storage())
    trap = Backdoor(target=3, size=2).trap(ready.exam.pool)
    assert len(trap) == int((ready.exam.pool.y != 3).sum())
    assert not (trap.y == 3).any()


def test_a_backdoor_works_beside_the_task_and_its_success_is_reported() -> None:
    method = FedAvg(lr=0.2, epochs=3, batch=8)
    attack = {"name": "backdoor", "size": 2, "boost": 5.0}
    plan = small_experiment(method, attack=attack, malicious="1,3", **{**PLAN, "rounds": 4, "evaluate_every": 4})
    harmed = start(plan, out=None).last("active")
    clean = start(small_experiment(method, **PLAN), out=None).last("active")
    assert harmed["attack_success"] > 0.6
    assert harmed["accuracy"] > 0.5
    assert "attack_success" not in clean
