"""FedTGP: margin and contrast by hand, and prototypes that move apart."""

import math

import pytest
import torch
from smallest import small_experiment
from torch import tensor

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedTGP
from fedstill.methods.fedtgp import class_gap, contrast
from fedstill.parts.class_knowledge import Prototypes


def test_the_margin_by_hand() -> None:
    """Mean prototypes of three classes at 0, 3 and 10 on a line: nearest others at 3, 3 and 7; the largest is 7.

    Class 0 is said to be at −1 and at 1 by two clients, class 3 by nobody.
    """
    first = tensor([[-1.0], [3.0], [0.0], [0.0]]), tensor([True, True, False, False])
    second = tensor([[1.0], [0.0], [10.0], [0.0]]), tensor([True, False, True, False])
    assert class_gap([first[0], second[0]], [first[1], second[1]]) == 7.0
    assert class_gap([first[0]], [tensor([True, False, False, False])]) == 0.0


def test_the_contrast_by_hand() -> None:
    """A point of class 0 at 0; prototypes at 3 and 5; margin 1: −(3 + 1) against −5: ln(1 + e^(−1))."""
    loss = contrast(tensor([[0.0]]), tensor([0]), tensor([[3.0], [5.0]]), 1.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert contrast(tensor([[0.0]]), tensor([0]), tensor([[3.0], [5.0]]), 2.0).item() == pytest.approx(math.log(2))


def test_a_point_on_a_prototype_has_a_finite_gradient() -> None:
    prototypes = torch.zeros(2, 1, requires_grad=True)
    contrast(tensor([[0.0]]), tensor([1]), prototypes, 1.0).backward()
    assert prototypes.grad is not None
    assert torch.isfinite(prototypes.grad).all()


def test_trained_prototypes_are_nearest_to_their_own_class() -> None:
    """Three classes' prototypes from two clients, a unit apart: after training each point's nearest is its own.

    A class nobody has is not known; the margin is at most τ.
    """
    method = FedTGP(server_epochs=200, tau=0.5)
    env = stage(small_experiment(method), Storage()).env
    server = method.init_server(env)
    assert not method.download(env, server).known.any()
    stream = torch.Generator().manual_seed(0)
    centres, seen = torch.randn(10, 64, generator=stream), torch.arange(10) < 3
    uploads = [Prototypes((centres + 0.1 * torch.randn(10, 64, generator=stream)) * seen[:, None], seen) for _ in "ab"]
    server = method.server(env, server, [Reply(k, 10, u) for k, u in enumerate(uploads)])
    down = method.download(env, server)
    assert down.known.tolist() == seen.tolist()
    nearest = torch.cdist(uploads[0].means[:3], down.means).argmin(1)
    assert nearest.tolist() == [0, 1, 2]
    assert method.facts(env, server) == {"known_classes": 3, "margin": 0.5}


def test_it_learns_with_different_networks() -> None:
    method = FedTGP(lr=0.2, epochs=3, batch=8, server_epochs=20)
    plan = small_experiment(method, active=1.0, rounds=2, alpha=100.0, models="mlp,resnet8-slim")
    assert start(plan, out=None).last("personal")["amp"] > 0.4
