"""SCAFFOLD: the first round, the control variates, the server's step."""

import pytest
import torch
from smallest import same_bits, small_experiment

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, Scaffold
from fedstill.methods.scaffold import Control, Course, Heading, Steered
from fedstill.parts.averaging import Broadcast
from fedstill.parts.gather import Everyone, Remember
from fedstill.parts.losses import cross_entropy


def test_a_first_turn_is_fedavgs():
    """With c = c_i = 0 a local step is SGD's."""
    method, plain = Scaffold(lr=0.1, epochs=2), FedAvg(lr=0.1, epochs=2)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 1), ready.party(1).data
    server = method.init_server(env.at(0))
    _, upload = method.client(env, method.init_client(env), method.download(env, server), data)
    _, expected = plain.client(env, None, Broadcast(server.weights), data)
    assert same_bits(upload.weights, expected.weights)


def test_a_step_is_corrected_and_the_control_is_the_gradient():
    """One step on the whole data with gradient g: y = w − lr (g − c_i + c), and c_i⁺ = c_i − c + (w − y)/lr = g."""
    method = Scaffold(local_steps=1, batch=10**6, lr=0.5)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 0), ready.party(0).data
    own, common = (dict(env.build(None, seed).named_parameters()) for seed in (3, 4))
    own, common = ({n: p.detach() for n, p in c.items()} for c in (own, common))
    state, upload = method.client(env, Control(own), Heading(env.initial(), common), data)
    module = env.module(env.initial())
    cross_entropy(module(data.inputs()), data.y).backward()
    for name, p in module.named_parameters():
        expected = p.detach() - 0.5 * (p.grad - own[name] + common[name])
        assert torch.allclose(upload.weights[name], expected, atol=1e-6)
        assert torch.allclose(state.control[name], p.grad, atol=1e-5)
        assert torch.allclose(upload.change[name], p.grad - own[name], atol=1e-5)


def test_the_servers_step_by_hand():
    """Two of four clients with w_k = 1 and 4, changes 1 and 3: the plain mean 2.5 (their 1 and 99 samples do not
    count), c = .5 + 2/4 · 2 = 1.5. With η_g = ½ from w = 0: 1.25; the buffer is averaged, whatever η_g.
    """
    replies = [
        Reply(k, n, Steered({"w": torch.tensor([v]), "running": torch.tensor([v])}, {"w": torch.tensor([c])}))
        for k, n, v, c in ((0, 1, 1.0, 1.0), (1, 99, 4.0, 3.0))
    ]
    weights = {"w": torch.zeros(1), "running": torch.zeros(1)}
    server = Course(weights, {"w": torch.tensor([0.5])}, None)
    env = stage(small_experiment(Scaffold(), clients=4), Storage()).env
    made = Scaffold(gather=Everyone()).server(env, server, replies)
    assert (made.weights["w"].item(), made.control["w"].item()) == (2.5, 1.5)
    half = Scaffold(gather=Everyone(), server_lr=0.5).server(env, server, replies)
    assert (half.weights["w"].item(), half.weights["running"].item()) == (1.25, 2.5)


def test_the_servers_control_is_the_mean_of_the_clients(runs):
    """c = (1/N) Σ c_i over all clients, the inactive with c_i = 0, after any number of rounds."""
    from fedstill.experiment.rundir import RunDir

    start(small_experiment(Scaffold(lr=0.05, epochs=1), rounds=3), out=runs, name="steered")
    state = RunDir.open(runs / "steered").latest()[0]
    for name, control in state.server.control.items():
        mean = sum(state.clients[k].control[name] for k in state.clients) / 6
        assert torch.allclose(control, mean, atol=1e-5)
        assert control.abs().max() > 0


def test_wrong_settings_are_told():
    with pytest.raises(UsageError, match=r"optimizer = adam: .*must be sgd without momentum"):
        Scaffold(optimizer="adam")
    with pytest.raises(UsageError, match=r"momentum = 0.9: .*must be sgd without momentum"):
        Scaffold(momentum=0.9)
    with pytest.raises(UsageError, match=r"slots = client: this method's clients do not send the change"):
        small_experiment(Scaffold(gather=Remember(slots="client")))
