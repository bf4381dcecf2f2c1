"""FedNTD: the not-true loss by hand, β = 0, and a step down its gradient."""

import math

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import tensor

from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedNTD
from fedstill.parts.averaging import Broadcast
from fedstill.parts.losses import cross_entropy
from fedstill.parts.not_true import not_true, not_true_kl


def test_the_loss_by_hand():
    """Label 0, teacher (9, ln 3, 0), student (−7, 0, 0): without class 0, (3/4, 1/4) against (1/2, 1/2).

    KL = 3/4 ln(3/2) + 1/4 ln(1/2). A second sample, label 2, teacher = student up to class 2: 0; mean: half of it.
    """
    teacher = tensor([[9.0, math.log(3), 0.0], [1.0, 2.0, 50.0]])
    student = tensor([[-7.0, 0.0, 0.0], [1.0, 2.0, -3.0]])
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert not_true_kl(teacher, student, tensor([0, 2])).item() == pytest.approx(expected, rel=1e-5)


def test_the_temperature_divides_logits_and_its_square_multiplies():
    """Teacher (·, 2 ln 3, 0) at t = 2 is (3/4, 1/4) again, and the loss counts four times."""
    teacher, student = tensor([[0.0, 2 * math.log(3), 0.0]]), torch.zeros(1, 3)
    expected = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert not_true_kl(teacher, student, tensor([0]), 2.0).item() == pytest.approx(expected, rel=1e-5)


def test_the_true_class_gets_no_gradient_and_two_classes_have_nothing_to_distil():
    student = torch.zeros(1, 3, requires_grad=True)
    not_true_kl(tensor([[1.0, 2.0, 3.0]]), student, tensor([1])).backward()
    assert student.grad is not None
    assert student.grad[0, 1] == 0
    assert student.grad[0, 0] != 0
    assert not_true_kl(tensor([[1.0, 5.0]]), torch.zeros(1, 2), tensor([0])).item() == 0
    assert not_true(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1, 0])).tolist() == [[1.0], [4.0]]


def test_without_distillation_it_is_fedavg_to_the_bit(runs):
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "ntd": FedNTD(epochs=1, lr=0.1, beta=0.0)}.items():
        start(small_experiment(method, rounds=3), out=runs, name=name)
    plain, ntd = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "ntd"))
    assert same_bits(plain, ntd)


def test_steps_are_down_the_gradient_of_the_loss():
    """Two steps on the whole data; in the first, student = teacher and L_NTD has no gradient: CE alone."""
    method = FedNTD(local_steps=2, batch=10**6, lr=0.5, beta=3.0, tau=2.0)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 0), ready.party(0).data
    down = Broadcast(env.initial())
    _, upload = method.client(env, None, down, data)
    student, teacher, x = env.module(down.weights), env.module(down.weights), data.inputs()
    for _ in range(2):
        student.zero_grad()
        said = teacher(x).detach()
        (cross_entropy(student(x), data.y) + 3.0 * not_true_kl(said, student(x), data.y, 2.0)).backward()
        with torch.no_grad():
            for parameter in student.parameters():
                parameter -= 0.5 * parameter.grad
    for name, parameter in student.named_parameters():
        assert torch.allclose(upload.weights[name], parameter.detach(), atol=1e-5)
