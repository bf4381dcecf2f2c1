"""FedRAD: both losses by hand, who teaches whom, what stays on the client, and the schedule across a resume."""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import nn

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.shelf import Storage
from fedstill.data.samples import Samples
from fedstill.experiment.run import resume, start
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedRAD
from fedstill.methods.fedrad import Local
from fedstill.parts.averaging import Averaging, Broadcast, Global
from fedstill.parts.gather import Update
from fedstill.parts.learner import frozen, predict
from fedstill.parts.losses import cross_entropy, relation_gap, relations

OWN = torch.tensor([[0.0, 0.0]])  # p_n = (½, ½)
OTHER = torch.tensor([[log(3), 0.0]])  # p_g = (¾, ¼)
FIRST = torch.tensor([0])


def test_the_local_loss_by_hand():
    """(2) One sample, so L_RKD = 0. CE = ln 2 = .693147, KL(p_g‖p_n) = .130812, H(p_g) = .562335, λ = .580812.

    α = ½: ½ · .693147 + ½ · .580812 · .130812 = .346574 + .037989 = .384563. Without EWAW λ = ½: .346574 + .032703.
    Without L_RKD λ = 1: .346574 + .065406.
    """
    losses = {
        0.384563: FedRAD(),
        0.379277: FedRAD(adaptive_weight=False),
        0.411980: FedRAD(relational=False),
    }
    for expected, method in losses.items():
        assert method.losses(0.5, OWN, OTHER, FIRST)[0].item() == pytest.approx(expected, abs=1e-6)


def test_the_global_loss_by_hand():
    """(3) CE = −ln ¾ = .287682, KL(p_n‖p_g) = .143841: ½ · .287682 + ½ · .143841 = .215762, whatever λ is."""
    for method in (FedRAD(), FedRAD(adaptive_weight=False), FedRAD(relational=False)):
        assert method.losses(0.5, OWN, OTHER, FIRST)[1].item() == pytest.approx(0.215762, abs=1e-6)


def test_relations_count_with_their_share():
    """Three samples with L_RKD = 1/48 (test_losses): with α = 0 and λ = ½ (2) is ½ KL + ½ · 1/48, (3) is KL + 1/48."""
    own, other = (torch.tensor([[0.0, 0.0], [1.0, 0.0], [c, 0.0]]) for c in (3.0, 2.0))
    y = torch.tensor([0, 0, 0])
    whole, single = FedRAD(adaptive_weight=False), FedRAD(relational=False)
    divergence = single.losses(0.0, own, other, y)[0].item()
    assert whole.losses(0.0, own, other, y)[0].item() == pytest.approx(divergence / 2 + 1 / 96)
    divergence = single.losses(0.0, own, other, y)[1].item()
    assert whole.losses(0.0, own, other, y)[1].item() == pytest.approx(divergence + 1 / 48)
    assert replace(whole, pairs="sum").losses(0.0, own, other, y)[1].item() == pytest.approx(divergence + 1 / 8)
    # by the letter: the sum over six ordered pairs, 1/8, divided by B = 3 as the other sums are
    assert replace(whole, pairs="letter").losses(0.0, own, other, y)[1].item() == pytest.approx(divergence + 1 / 24)


def test_the_other_model_is_a_constant():
    """In (2) the global model's weights get no gradient, in (3) the local model's get none."""
    x, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 0, 1])
    local, copy = nn.Linear(3, 2), nn.Linear(3, 2)
    FedRAD().losses(0.5, local(x), copy(x), y)[0].backward()
    assert local.weight.grad.abs().sum() > 0
    assert copy.weight.grad is None
    local.zero_grad()
    FedRAD().losses(0.5, local(x), copy(x), y)[1].backward()
    assert copy.weight.grad.abs().sum() > 0
    assert local.weight.grad is None


def turn(method: Any, **where: Any) -> tuple[Any, Env, Samples]:
    """A stage, its first client, and that client's samples."""
    ready = stage(small_experiment(method), Storage())
    return method, ready.env.at(where.get("round", 0), 1), ready.party(1).data


def test_the_local_model_stays_and_the_trained_copy_leaves():
    """With next to no learning rate both models keep what they were: the state its own, the upload the download."""
    method, env, data = turn(FedRAD(lr=1e-30))
    own, down = env.initial(5), env.initial()
    assert not same_bits(own, down)
    state, upload = method.client(env, Local(own, {}, None), Broadcast(down), data)
    assert same_bits(state.weights, own)
    assert same_bits(upload.weights, down)


def test_the_local_model_starts_as_the_first_download_and_lives_on():
    method, env, data = turn(FedRAD(epochs=1, lr=0.1))
    down = Broadcast(env.initial())
    state, _ = method.client(env, method.init_client(env), down, data)
    assert not same_bits(state.weights, down.weights)
    again, second = method.client(env.at(1, 1), state, down, data)
    fresh, other = method.client(env.at(1, 1), method.init_client(env), down, data)
    assert not same_bits(again.weights, fresh.weights)  # it went on from where it was
    assert not same_bits(second.weights, other.weights)  # and so it taught the copy something else


def test_with_labels_alone_the_copy_is_trained_as_in_fedavg():
    """α = 1 leaves cross-entropy in (3): the upload is FedAvg's, to the bit."""
    method, env, data = turn(FedRAD(alpha0=1.0, alpha_min=1.0, lr=0.1, batch=32))
    plain = FedAvg(lr=0.1, lr_decay=method.lr_decay, epochs=method.epochs, batch=32)
    down = Broadcast(env.initial())
    _, upload = method.client(env, method.init_client(env), down, data)
    _, expected = plain.client(env, None, down, data)
    assert same_bits(upload, expected)


def test_the_server_takes_the_plain_mean():
    """(line 8) 0 and 1 make ½, though the clients hold 1 and 99 samples."""
    method, env, _ = turn(FedRAD())
    replies = [Reply(k, n, Update({"w": torch.full((1,), float(k))})) for k, n in ((0, 1), (1, 99))]
    assert method.server(env, Global({"w": torch.zeros(1)}, None), replies).weights["w"].item() == 0.5


def test_by_samples_the_server_weighs_the_copies():
    """(1) 0 and 1 of clients with 1 and 99 samples make .99."""
    method, env, _ = turn(FedRAD(weighting="samples"))
    replies = [Reply(k, n, Update({"w": torch.full((1,), float(k))})) for k, n in ((0, 1), (1, 99))]
    assert method.server(env, Global({"w": torch.zeros(1)}, None), replies).weights["w"].item() == pytest.approx(0.99)


def test_a_local_model_of_the_clients_own_differs_from_the_downloaded_one_and_from_others():
    """Downloaded, both models agree at first: KL and L_RKD are 0, and the first step is FedAvg's at α₀ · lr."""
    method, env, data = turn(FedRAD(lr=0.1, batch=32, epochs=1, local_start="own"))
    states = [method.init_client(env.at(0, client)) for client in (0, 1)]
    down = Broadcast(env.initial())
    assert not same_bits(states[0].weights, states[1].weights)
    assert not same_bits(states[0].weights, down.weights)
    one = replace(method, local_steps=1)
    _, own = one.client(env, states[0], down, data)
    _, downloaded = replace(one, local_start="downloaded").client(env, Local(None, {}, None), down, data)
    _, plain = FedAvg(lr=0.1 * method.alpha0, batch=32, local_steps=1).client(env, None, down, data)
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(downloaded.weights[name], tensor)
    assert not torch.allclose(own.weights["head.weight"], plain.weights["head.weight"], atol=1e-6)


def test_alpha_follows_its_schedule_across_a_resume(runs):
    """α₀ = .9, halved: .9, .45, then the floor .3; the same bits as without the stop."""
    plan = small_experiment(FedRAD(alpha_decay=0.5, epochs=1), rounds=4)
    whole = start(plan, out=runs, name="whole")
    start(replace(plan, rounds=2), out=runs, name="stopped")
    resumed = resume(runs / "stopped", rounds=4)
    for result in (whole, resumed):
        assert [row["facts"]["alpha"] for row in result.rows] == [0.9, 0.45, 0.3, 0.3]
    assert [row["models"] for row in whole.rows] == [row["models"] for row in resumed.rows]
    steady = start(replace(plan, method=FedRAD(alpha_decay=0.5, adaptive_alpha=False, epochs=1)), out=None)
    assert [row["facts"]["alpha"] for row in steady.rows] == [0.9] * 4


def test_the_global_and_every_clients_own_model_are_examined():
    result = start(small_experiment(FedRAD(lr=0.1, batch=16), active=1.0, rounds=3), out=None)
    assert result.models == ["global", "personal"]
    personal, common = result.last("personal"), result.last("global")
    assert len(personal["accuracy_per_client"]) == 6
    assert personal["amp"] > common["amp"] > 0.1  # after three rounds each knows its own digits best


def test_a_floor_above_the_start_is_told():
    with pytest.raises(UsageError, match=r"alpha_min = 0.3: must be ≤ alpha0 = 0.2"):
        FedRAD(alpha0=0.2)


@dataclass(frozen=True)
class RelationalProx(Averaging):
    """FedProx that also distils relations from the global model: one line more."""

    mu: float = 0.01
    strength: float = 1.0

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        learner, teacher = self.learner(env, env.module(down.weights)), frozen(env.module(down.weights))
        anchor = [p.detach().clone() for p in learner.parameters]
        for x, y in self.batches(env, data, learner.module):
            logits = learner(x)
            leash = sum((p - a).square().sum() for p, a in zip(learner.parameters, anchor, strict=True))
            loss = cross_entropy(logits, y) + self.mu / 2 * leash
            loss = loss + self.strength * relation_gap(relations(teacher(x).detach()), relations(logits))
            learner.step(loss)
        return self.gather.outgoing(env, state, learner.weights)


def test_any_method_can_take_a_part():
    """Relational distillation in FedProx keeps the client's relations nearer to the global model's."""
    gap = {}
    for strength in (0.0, 5.0):
        method, env, data = turn(RelationalProx(lr=0.1, batch=32, epochs=5, strength=strength))
        down = Broadcast(env.initial())
        _, upload = method.client(env, None, down, data)
        before, after = (predict(env.module(w), data.inputs()) for w in (down.weights, upload.weights))
        gap[strength] = relation_gap(relations(before), relations(after)).item()
    assert gap[5.0] < 0.8 * gap[0.0]
