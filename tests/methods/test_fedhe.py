"""FedHe: mean logits of classes by hand, classes nobody has, and different networks."""

import math
from typing import Any

import pytest
import torch
from smallest import small_experiment
from torch import tensor

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedHe
from fedstill.methods.fedhe import ClassWisdom, MeanLogits


def test_the_loss_by_hand() -> None:
    """Sample 1: logits (0, 0), label 0, class logits (2, 0): CE ln 2, MSE (4 + 0)/2 = 2.

    Sample 2: label 1, of which nothing is known: CE ln 2 only. Mean: ln 2 + ½·(2 + 0)/2 = ln 2 + ½.
    """
    class_logits, known = tensor([[2.0, 0.0], [9.0, 9.0]]), tensor([True, False])
    loss = FedHe().loss(torch.zeros(2, 2), tensor([0, 1]), class_logits, known)
    assert loss.item() == pytest.approx(math.log(2) + 0.5)


def env_of_three() -> Any:
    ready = stage(small_experiment(FedHe()), Storage())
    from dataclasses import replace

    return replace(ready.env, classes=3)


def test_the_server_averages_over_those_that_have_a_class() -> None:
    """Class 0: clients say (1, 0, 0) and (3, 0, 0): (2, 0, 0). Class 1: only the second: (0, 8, 0), not halved.

    Class 2: nobody now; what was known of it, (0, 0, 5), stays.
    """
    env, method = env_of_three(), FedHe()
    before = ClassWisdom(tensor([[0.0] * 3, [0.0] * 3, [0.0, 0.0, 5.0]]), tensor([False, False, True]))
    first = MeanLogits(tensor([[1.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3]), tensor([True, False, False]))
    second = MeanLogits(tensor([[3.0, 0.0, 0.0], [0.0, 8.0, 0.0], [0.0] * 3]), tensor([True, True, False]))
    after = method.server(env, before, [Reply(0, 5, first), Reply(1, 500, second)])
    assert after.logits.tolist() == [[2.0, 0.0, 0.0], [0.0, 8.0, 0.0], [0.0, 0.0, 5.0]]
    assert after.known.tolist() == [True, True, True]
    assert method.facts(env, after) == {"known_classes": 3, "class_logits": 1.0}


def test_a_client_tells_the_means_of_its_classes_and_which_it_has() -> None:
    """With a rate too small to move, the means are those of the initial model; the client has no class 0."""
    method = FedHe(lr=1e-12, optimizer="sgd", batch=7)
    ready = stage(small_experiment(method), Storage())
    env = ready.env.at(0, 1)
    data = ready.party(1).data
    data = data[data.y > 0]
    state = method.init_client(env)
    _, upload = method.client(env, state, method.download(env, method.init_server(env)), data)
    with torch.no_grad():
        logits = env.module(state.weights, 1)(data.inputs())
    assert upload.seen.tolist() == [bool((data.y == c).any()) for c in range(10)]
    assert not upload.seen[0]
    for c in range(10):
        mine = data.y == c
        expected = logits[mine].mean(0) if mine.any() else torch.zeros(10)
        torch.testing.assert_close(upload.logits[c], expected, atol=1e-5, rtol=1e-4)


def test_it_learns_without_weights_or_public_data() -> None:
    plan = small_experiment(FedHe(lr=0.01, epochs=3), active=1.0, rounds=3, alpha=100.0)
    result = start(plan, out=None)
    assert result.last("personal")["accuracy"] > 0.6
    assert result.bytes_by_field()["up"] == {"logits": 3 * 6 * 400, "seen": 3 * 6 * 10}
    assert result.rows[-1]["facts"]["class_logits"] > 0.8
