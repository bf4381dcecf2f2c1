"""q-FFL: the step by hand, q = 0, and the loss that travels."""

import pytest
import torch
from smallest import small_experiment, small_method

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import QFFL
from fedstill.methods.qffl import Assessed, fair_step
from fedstill.parts.averaging import Broadcast
from fedstill.parts.gather import mean
from fedstill.parts.losses import cross_entropy


def assessed(weight: float, loss: float, buffer: float = 0.0) -> Assessed:
    return Assessed({"w": torch.tensor([weight]), "running": torch.tensor([buffer])}, torch.tensor(loss))


def test_the_step_by_hand():
    """w = 1, lr = ½, q = 1. w₁ = 0, F₁ = 3: gradient 2, Δ = 6, h = 4 + 6 = 10. w₂ = 1.5, F₂ = 2: gradient −1, Δ = −2,
    h = 1 + 4 = 5. w − 4/15 = 11/15. The buffer, which is not trained, becomes the plain mean of 2 and 5.
    """
    start = {"w": torch.tensor([1.0]), "running": torch.tensor([8.0])}
    made = fair_step(start, [assessed(0.0, 3.0, 2.0), assessed(1.5, 2.0, 5.0)], 1.0, 0.5, {"w"})
    assert made["w"].item() == pytest.approx(11 / 15)
    assert made["running"].item() == 3.5


def test_a_client_without_loss_does_not_break_the_step():
    """F = 0 counts as 1e−10: with q = 1, Δ = 2e−10 and h = 4 + 2e−10 stay finite beside Δ = −2, h = 5."""
    made = fair_step({"w": torch.tensor([1.0])}, [assessed(0.0, 0.0), assessed(1.5, 2.0)], 1.0, 0.5, {"w"})
    assert made["w"].item() == pytest.approx(1 + 2 / 9)


def test_q_zero_is_the_unweighted_average():
    method = QFFL(q=0.0, lr=0.1, epochs=1)
    ready = stage(small_experiment(method), Storage())
    env = ready.env
    server = method.init_server(env.at(0))
    replies = []
    for k in range(3):
        here = env.at(0, k)
        _, upload = method.client(here, None, method.download(here, server), ready.party(k).data)
        replies.append(Reply(k, env.sizes[k], upload))
    made = method.server(env.at(0), server, replies).weights
    expected = mean([r.upload.weights for r in replies])
    assert len({r.samples for r in replies}) > 1
    assert all(torch.allclose(made[n], expected[n], atol=1e-6) for n in expected)


def test_the_loss_is_that_of_the_download_on_the_clients_data():
    method = QFFL(lr=0.1, epochs=1)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 1), ready.party(1).data
    _, upload = method.client(env, None, Broadcast(env.initial()), data)
    expected = cross_entropy(env.module(env.initial())(data.inputs()), data.y)
    assert upload.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_larger_q_serves_the_worse_off():
    """Two clients pull w = 0 to −1 and +1; the second has 9 times the loss, so with q > 0 the step is towards it."""
    start, uploads = {"w": torch.zeros(1)}, [assessed(-1.0, 0.1), assessed(1.0, 0.9)]
    steps = [fair_step(start, uploads, q, 0.1, {"w"})["w"].item() for q in (0.0, 0.5, 1.0)]
    assert steps[0] == pytest.approx(0)
    assert steps[1] > 0.01
    assert steps[2] > 0.01


def test_the_overall_model_is_reported_too_and_a_loss_leaves():
    result = start(small_experiment(small_method("q-ffl")), out=None)
    assert result.models == ["active", "overall"]
    assert QFFL.leaves_client()["loss"] == "a loss value"


def test_wrong_things_are_told():
    assert QFFL().objection(None, assessed(0.0, -1.0)) == "a loss of -1"
    assert QFFL().objection(None, assessed(0.0, 0.0)) is None
