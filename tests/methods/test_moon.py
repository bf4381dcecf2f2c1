"""MOON: μ = 0, the first turn, and a step by hand."""

import torch
from smallest import same_bits, small_experiment

from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, Moon
from fedstill.methods.moon import Previous
from fedstill.parts.averaging import Broadcast
from fedstill.parts.losses import contrast, cross_entropy


def test_without_contrast_it_is_fedavg_to_the_bit(runs):
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "moon": Moon(epochs=1, lr=0.1, mu=0.0)}.items():
        start(small_experiment(method, rounds=3, active=1.0), out=runs, name=name)
    plain, moon = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "moon"))
    assert same_bits(plain.weights, moon.weights)


def test_a_first_turn_is_fedavgs_and_a_second_is_not():
    method, plain = Moon(lr=0.1, epochs=1), FedAvg(lr=0.1, epochs=1)
    ready = stage(small_experiment(method), Storage())
    env, data, down = ready.env.at(0, 1), ready.party(1).data, Broadcast(ready.env.initial())
    state, upload = method.client(env, method.init_client(env), down, data)
    assert same_bits(upload, plain.client(env, None, down, data)[1])
    assert same_bits(state.weights, upload.weights)
    _, second = method.client(env, state, down, data)
    assert not same_bits(second, upload)


def test_a_step_is_down_the_gradient_of_the_loss():
    """One step on the whole data: w − lr ∇(CE + μ ℓ_con), the other two models' features constants."""
    method = Moon(local_steps=1, batch=10**6, lr=0.5, mu=2.0, tau=0.3)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 0), ready.party(0).data
    down, before = Broadcast(env.initial()), Previous(env.initial(3), None)
    _, upload = method.client(env, before, down, data)
    student, near, far = (env.module(w) for w in (down.weights, down.weights, before.weights))
    x = data.inputs()
    wanted, left = near.features(x).detach(), far.features(x).detach()
    (cross_entropy(student(x), data.y) + 2 * contrast(student.features(x), wanted, left, 0.3)).backward()
    for name, parameter in student.named_parameters():
        assert torch.allclose(upload.weights[name], parameter.detach() - 0.5 * parameter.grad, atol=1e-6)
