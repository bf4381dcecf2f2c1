"""FedLC: margins and losses by hand, classes a client does not have, and τ = 0."""

import math

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import tensor

from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedLC
from fedstill.parts.averaging import Broadcast
from fedstill.parts.calibration import calibrated_cross_entropy, margins


def test_the_loss_by_hand():
    """Counts 16 and 1, τ = 2: margins 1 and 2. Logits (0, 0) become (−1, −2).

    Label 0: ln(1 + e⁻¹); label 1: ln(1 + e): the rare class is pushed up harder. Mean of both.
    """
    loss = calibrated_cross_entropy(torch.zeros(2, 2), tensor([0, 1]), margins(tensor([16, 1]), 2.0))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(1 + math.e)) / 2)


def test_the_loss_as_printed_by_hand():
    """Without its own class in the sum: label 0: −2 − (−1) = −1, label 1: −1 − (−2) = 1; it can be negative."""
    margin = margins(tensor([16, 1]), 2.0)
    one = calibrated_cross_entropy(torch.zeros(1, 2), tensor([0]), margin, others_only=True)
    two = calibrated_cross_entropy(torch.zeros(1, 2), tensor([1]), margin, others_only=True)
    assert (one.item(), two.item()) == pytest.approx((-1.0, 1.0))


@pytest.mark.parametrize("others_only", [False, True])
def test_a_class_the_client_does_not_have_is_left_in_peace(others_only: bool):
    """Counts (4, 4, 0): class 2 takes no part, whatever its logit, and gets no gradient; all stays finite."""
    margin = margins(tensor([4, 4, 0]), 1.0)
    logits = tensor([[1.0, 0.0, 80.0]], requires_grad=True)
    loss = calibrated_cross_entropy(logits, tensor([0]), margin, others_only)
    expected = -1.0 if others_only else math.log(1 + math.exp(-1))
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] == 0
    assert torch.isfinite(logits.grad).all()


def test_a_client_with_one_class_learns_nothing_of_it():
    logits = tensor([[1.0, 0.0]], requires_grad=True)
    for others_only in (False, True):
        loss = calibrated_cross_entropy(logits, tensor([0]), margins(tensor([7, 0]), 1.0), others_only)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.item() == 0
        assert gradient.tolist() == [[0.0, 0.0]]


def test_without_calibration_it_is_fedavg_to_the_bit(runs):
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "lc": FedLC(epochs=1, lr=0.1, tau=0.0)}.items():
        start(small_experiment(method, rounds=3, alpha=0.1), out=runs, name=name)
    plain, lc = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "lc"))
    assert same_bits(plain, lc)


def test_the_head_of_a_missing_class_does_not_move():
    """A client without class 3: its row of the last layer stays what came down, as no gradient reaches it."""
    method = FedLC(lr=0.5, epochs=1)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 0), ready.party(0).data
    data = data[data.y != 3]
    down = Broadcast(env.initial())
    _, upload = method.client(env, None, down, data)
    head = next(n for n in down.weights if n.startswith("head") and n.endswith("weight"))
    assert torch.equal(upload.weights[head][3], down.weights[head][3])
    assert not torch.equal(upload.weights[head], down.weights[head])
