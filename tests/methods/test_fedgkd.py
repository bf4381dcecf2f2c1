"""FedGKD: the buffer, the teacher, and γ = 0."""

import pytest
import torch
from smallest import same_bits, small_experiment

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedGKD
from fedstill.methods.fedgkd import Lesson, Recent
from fedstill.parts.gather import Everyone, Update
from fedstill.parts.losses import cross_entropy, kl


def test_without_distillation_it_is_fedavg_to_the_bit(runs):
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "gkd": FedGKD(epochs=1, lr=0.1, gamma=0.0)}.items():
        start(small_experiment(method, rounds=3), out=runs, name=name)
    plain, gkd = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "gkd"))
    assert same_bits(plain.weights, gkd.weights)


def test_the_teacher_is_the_mean_of_the_last_models():
    """w⁰ = 9 teaches nothing. Buffer 2: after 1 the teacher is w itself (nothing more goes down), after 1, 2 it is 1.5,
    after 1, 2, 4 it is 3.
    """
    method = FedGKD(buffer=2, gather=Everyone())
    server = Recent({"w": torch.tensor([9.0])}, None, ())
    assert not method.download(None, server).distil
    teachers = []
    for value in (1.0, 2.0, 4.0):
        server = method.server(None, server, [Reply(0, 3, Update({"w": torch.tensor([value])}))])
        down = method.download(None, server)
        assert down.distil
        teachers.append(down.teacher and down.teacher["w"].item())
    assert teachers == [None, 1.5, 3.0]


@pytest.mark.parametrize("taught", [True, False])
def test_a_step_is_down_the_gradient_of_the_loss(taught):
    """One step on the whole data: w − lr ∇(CE + γ/2 KL(teacher ‖ student)), without a teacher CE alone."""
    method = FedGKD(local_steps=1, batch=10**6, lr=0.5, gamma=3.0)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 0), ready.party(0).data
    down = Lesson(env.initial(), env.initial(3), taught)
    _, upload = method.client(env, None, down, data)
    student, teacher = env.module(down.weights), env.module(down.teacher)
    x = data.inputs()
    loss = cross_entropy(student(x), data.y)
    if taught:
        loss = loss + 3.0 / 2 * kl(teacher(x).detach(), student(x))
    loss.backward()
    for name, parameter in student.named_parameters():
        assert torch.allclose(upload.weights[name], parameter.detach() - 0.5 * parameter.grad, atol=1e-6)
