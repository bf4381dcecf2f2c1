"""FedDyn: the server's step and the client's loss by hand, its fixed point, and α = 0."""

import pytest
import torch
from smallest import same_bits, small_experiment

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedDyn
from fedstill.parts.averaging import Broadcast
from fedstill.parts.dynamic import Bend, Corrected
from fedstill.parts.gather import Everyone, Update
from fedstill.parts.losses import cross_entropy


class TwoOfFour:
    """As much of an `Env` as the server's step needs: four clients of 1, 1, 1 and 5 samples."""

    clients = 4
    sizes = (1, 1, 1, 5)


def after(method: FedDyn, server: Corrected, values: dict[int, float]) -> Corrected:
    replies = [Reply(k, TwoOfFour.sizes[k], Update({"w": torch.tensor([v])})) for k, v in values.items()]
    made = method.server(TwoOfFour(), server, replies)
    assert isinstance(made, Corrected)
    return made


def test_the_servers_steps_by_hand():
    """θ = 1, two of four clients say 2 and 4. Their mean is 3; s = 0 − ½·(3 − 1) = −1 (h = −α); θ = 3 − (−1) = 4.

    Then one client says 4: mean 4, s = −1 − ¼·0 = −1, θ = 4 + 1 = 5: the correction stays.
    """
    method = FedDyn(gather=Everyone(), alpha=0.3)
    server = Corrected({"w": torch.tensor([1.0])}, None, {"w": torch.tensor([0.0])})
    server = after(method, server, {0: 2.0, 2: 4.0})
    assert (server.correction["w"].item(), server.weights["w"].item()) == (-1.0, 4.0)
    server = after(method, server, {1: 4.0})
    assert (server.correction["w"].item(), server.weights["w"].item()) == (-1.0, 5.0)


def test_by_samples_the_servers_step_by_hand():
    """Clients 0 (one sample, says 2) and 3 (five, says 8): mean 7; s = −6/8·(7 − 1) = −4.5; θ = 11.5."""
    method = FedDyn(gather=Everyone(), weighting="samples")
    server = Corrected({"w": torch.tensor([1.0])}, None, {"w": torch.tensor([0.0])})
    server = after(method, server, {0: 2.0, 3: 8.0})
    assert (server.correction["w"].item(), server.weights["w"].item()) == (-4.5, 11.5)


def test_a_turn_is_down_the_gradient_of_the_bent_loss():
    """Two steps on the whole data on CE − α⟨d, θ⟩ + α/2 ‖θ − θ_t‖²; then d loses the way that was gone."""
    method = FedDyn(local_steps=2, batch=10**6, lr=0.5, alpha=0.7)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 0), ready.party(0).data
    down = Broadcast(env.initial())
    before = Bend({n: 0.1 * torch.randn(t.shape) for n, t in method.init_client(env).gradient.items()}, None)
    state, upload = method.client(env, before, down, data)
    student = env.module(down.weights)
    for _ in range(2):
        student.zero_grad()
        loss = cross_entropy(student(data.inputs()), data.y)
        for name, p in student.named_parameters():
            loss = loss - 0.7 * (before.gradient[name] * p).sum() + 0.35 * (p - down.weights[name]).square().sum()
        loss.backward()
        with torch.no_grad():
            for p in student.parameters():
                p -= 0.5 * p.grad
    for name, p in student.named_parameters():
        torch.testing.assert_close(upload.weights[name], p.detach(), atol=1e-5, rtol=1e-4)
        went = before.gradient[name] - (upload.weights[name] - down.weights[name])
        torch.testing.assert_close(state.gradient[name], went)


def test_unequal_clients_come_to_the_global_optimum():
    """Two clients, L_1 = (θ − 0)²/2 and L_2 = 3 (θ − 4)²/2: the sum is least at 3.

    Solved exactly, a client's optimum of L_k − g_k θ + α/2 (θ − θ_t)² is (a_k c_k + g_k + α θ_t)/(a_k + α). With
    g_k ← g_k − α (θ_k − θ_t) and the server's step the iterates settle at 3; averaging optima alone gives 2.
    """
    method, alpha = FedDyn(gather=Everyone(), alpha=1.0), 1.0
    server = Corrected({"w": torch.tensor([0.0])}, None, {"w": torch.tensor([0.0])})

    class Both(TwoOfFour):
        clients = 2

    g = [0.0, 0.0]
    for _ in range(60):
        theta = server.weights["w"].item()
        found = [(a * c + g[k] + alpha * theta) / (a + alpha) for k, (a, c) in enumerate([(1.0, 0.0), (3.0, 4.0)])]
        g = [g[k] - alpha * (found[k] - theta) for k in range(2)]
        replies = [Reply(k, 1, Update({"w": torch.tensor([found[k]])})) for k in range(2)]
        made = method.server(Both(), server, replies)
        assert isinstance(made, Corrected)
        server = made
    assert server.weights["w"].item() == pytest.approx(3.0, abs=1e-4)


def test_alpha_zero_is_fedavg_to_the_bit(runs):
    dyn = FedDyn(epochs=1, lr=0.1, alpha=0.0, weighting="samples")
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "dyn": dyn}.items():
        start(small_experiment(method, rounds=3), out=runs, name=name)
    plain, dyn = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "dyn"))
    assert same_bits(plain.weights, dyn.weights)


def test_as_alpha_falls_a_clients_turn_becomes_fedavgs():
    """The bend is α times something bounded: a hundredth of α, about a hundredth of the difference."""
    ready = stage(small_experiment(FedDyn()), Storage())
    env, data, down = ready.env.at(0, 1), ready.party(1).data, Broadcast(ready.env.initial())
    _, plain = FedAvg(lr=0.1, epochs=2).client(env, None, down, data)
    gaps = []
    for alpha in (1.0, 0.01):
        method = FedDyn(lr=0.1, epochs=2, alpha=alpha)
        _, upload = method.client(env, method.init_client(env), down, data)
        gaps.append(max(float((upload.weights[n] - t).abs().max()) for n, t in plain.weights.items()))
    assert 50 < gaps[0] / gaps[1] < 200


def test_a_long_gradient_is_cut_to_its_length():
    """One step of SGD at rate 1 with max_norm = .01 moves all weights together by .01."""
    method = FedDyn(local_steps=1, batch=10**6, lr=1.0, max_norm=0.01)
    ready = stage(small_experiment(method), Storage())
    env, data, down = ready.env.at(0, 0), ready.party(0).data, Broadcast(ready.env.initial())
    _, upload = method.client(env, method.init_client(env), down, data)
    length = sum(float((upload.weights[n] - t).square().sum()) for n, t in down.weights.items()) ** 0.5
    assert length == pytest.approx(0.01, rel=1e-3)
