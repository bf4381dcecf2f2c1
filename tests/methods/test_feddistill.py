"""FedDistill: labels and the clients' mean teach together."""

import math

import pytest
import torch
from smallest import small_experiment
from torch import tensor

from fedstill.experiment.run import start
from fedstill.methods import FedDistill
from fedstill.parts.public_logits import Wisdom


def test_the_loss_by_hand() -> None:
    """Student ½ ½, teacher ¾ ¼ at t = 2 (logits 2 ln 3, 0), label 0, α = .25.

    CE = ln 2; KL(¾ ¼ ‖ ½ ½) = ¾ ln 3/2 + ¼ ln 1/2, times t² = 4: .25 CE + .75·4·KL.
    """
    method = FedDistill(alpha=0.25, temperature=2.0)
    down = Wisdom(tensor([[2 * math.log(3.0), 0.0]]), torch.arange(1), None)
    loss = method.public_loss(tensor([[0.0, 0.0]]), tensor([0]), tensor([0]), down)
    gap = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert loss.item() == pytest.approx(0.25 * math.log(2) + 3 * gap)


def test_without_global_logits_the_labels_teach_alone() -> None:
    loss = FedDistill().public_loss(tensor([[0.0, 0.0]]), tensor([1]), tensor([0]), Wisdom(None, None, None))
    assert loss.item() == pytest.approx(math.log(2))


def test_the_public_set_is_learned_by_every_client() -> None:
    plan = small_experiment(FedDistill(lr=0.01), active=1.0, rounds=4, public=0.3, alpha=100.0)
    facts = start(plan, out=None).rows[-1]["facts"]
    assert facts["global_logits"] > 0.9
    assert min(facts["client_logits"]) > 0.75
