"""FML: the two losses by hand, and that without distillation the shared model is FedAvg's."""

import math

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import tensor

from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FML, FedAvg, Local
from fedstill.methods.local import Nothing
from fedstill.parts.averaging import Broadcast
from fedstill.parts.losses import cross_entropy, kl
from fedstill.parts.mutual import mutual


def test_the_loss_by_hand() -> None:
    """Own (0, 0), other (ln 3, 0), label 0, share ¼: ¼ ln 2 + ¾ (¾ ln(3/2) + ¼ ln(1/2))."""
    loss = mutual(torch.zeros(1, 2), tensor([[math.log(3), 0.0]]), tensor([0]), 0.25)
    expected = 0.25 * math.log(2) + 0.75 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_without_distillation_both_models_go_their_own_way_to_the_bit(runs) -> None:
    """β = 1: the shared model is FedAvg's in every round; α = 1: the private one is that of a client alone."""
    start(small_experiment(FedAvg(epochs=1, lr=0.1), rounds=3), out=runs, name="plain")
    start(small_experiment(FML(epochs=1, lr=0.1, alpha=0.5, beta=1.0), rounds=3), out=runs, name="fml")
    plain, fml = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "fml"))
    assert same_bits(plain, fml)
    method, alone = FML(lr=0.1, epochs=2, alpha=1.0), Local(lr=0.1, epochs=2)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 1), ready.party(1).data
    mine, _ = method.client(env, method.init_client(env), Broadcast(env.initial()), data)
    theirs, _ = alone.client(env, alone.init_client(env), Nothing(), data)
    assert same_bits(mine.weights, theirs.weights)


def test_both_step_down_their_own_gradient_of_before_the_step() -> None:
    method = FML(local_steps=1, batch=10**6, lr=0.5, alpha=0.3, beta=0.8)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 0), ready.party(0).data
    before, down = method.init_client(env), Broadcast(env.initial())
    after, upload = method.client(env, before, down, data)
    local, meme, x = env.module(before.weights, 0), env.module(down.weights), data.inputs()
    own, shared = local(x), meme(x)
    (0.3 * cross_entropy(own, data.y) + 0.7 * kl(shared.detach(), own)).backward()
    (0.8 * cross_entropy(shared, data.y) + 0.2 * kl(own.detach(), shared)).backward()
    for module, weights in ((local, after.weights), (meme, upload.weights)):
        for name, p in module.named_parameters():
            torch.testing.assert_close(weights[name], p.detach() - 0.5 * p.grad, atol=1e-5, rtol=1e-4)


def test_private_models_may_differ_and_the_shared_one_is_the_servers(runs) -> None:
    plan = small_experiment(
        FML(epochs=3, lr=0.2, batch=8), models="mlp,resnet8-slim", server_model="mlp", active=1.0, alpha=100.0
    )
    result = start(plan, out=None)
    assert result.models == ["active", "overall", "personal"]
    assert result.last("personal")["amp"] > 0.4
    assert result.last("active")["amp"] > 0.4
