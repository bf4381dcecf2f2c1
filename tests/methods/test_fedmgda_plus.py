"""FedMGDA+: the step by hand, and that it is good for everybody."""

import numpy as np
import pytest
import torch
from smallest import small_experiment

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedMGDAPlus
from fedstill.methods.fedmgda_plus import Pareto, fairest
from fedstill.parts.gather import Everyone, Update


def test_directions_count_not_lengths():
    """w = 0, clients at 2 and 5 along two axes, 1 and 3 samples. ε = 1: unit gradients at right angles are shortest
    together at λ = ½, ½, a step of ½ along each. ε = 0: λ = ¼, ¾. The step does not depend on how far a client went.
    """
    method = FedMGDAPlus(gather=Everyone(), epsilon=1.0)
    env = stage(small_experiment(method), Storage()).env
    zero = {name: torch.zeros_like(t) for name, t in env.initial().items()}
    name = next(iter(zero))
    ends = []
    for place, far in ((0, 2.0), (1, 5.0)):
        end = {n: t.clone() for n, t in zero.items()}
        end[name].view(-1)[place] = far
        ends.append(end)
    replies = [Reply(k, n, Update(end)) for k, n, end in zip((4, 7), (1, 3), ends, strict=True)]
    made = method.server(env, Pareto(zero, None, {}), replies)
    assert made.weights[name].view(-1)[:3].tolist() == pytest.approx([0.5, 0.5, 0], abs=1e-5)
    assert made.shares == pytest.approx({4: 0.5, 7: 0.5}, abs=1e-5)
    usual = FedMGDAPlus(gather=Everyone(), epsilon=0.0, server_lr=2.0).server(env, Pareto(zero, None, {}), replies)
    assert usual.weights[name].view(-1)[:2].tolist() == pytest.approx([0.5, 1.5], abs=1e-5)


def test_opposite_wishes_cancel_and_a_client_that_stayed_is_no_obstacle():
    assert fairest(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([0.3, 0.7]), 1.0) == pytest.approx([0.5, 0.5])
    method = FedMGDAPlus(gather=Everyone())
    env = stage(small_experiment(method), Storage()).env
    initial = env.initial()
    made = method.server(env, Pareto(initial, None, {}), [Reply(0, 5, Update(initial))])
    assert all(torch.equal(made.weights[n], t) for n, t in initial.items())


@pytest.mark.parametrize("seed", range(5))
def test_the_step_goes_against_no_client(seed: int):
    """The shortest d of the hull has d·g_k ≥ ‖d‖² for all k; with ε the shares stay within it and still sum to 1."""
    gradients = np.random.default_rng(seed).normal(size=(6, 40)) + 0.1
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    usual = np.full(6, 1 / 6)
    step = fairest(gradients @ gradients.T, usual, 1.0) @ gradients
    assert (gradients @ step).min() >= step @ step - 1e-4
    near = fairest(gradients @ gradients.T, usual, 0.05)
    assert np.abs(near - usual).max() <= 0.05 + 1e-6
    assert near.sum() == pytest.approx(1)
    assert step @ step < (near @ gradients) @ (near @ gradients) < (usual @ gradients) @ (usual @ gradients)


def test_the_shares_are_reported_and_only_weights_leave():
    result = start(small_experiment(FedMGDAPlus(epochs=1), rounds=1), out=None)
    told = result.rows[-1]["facts"]["shares"]
    assert sum(told.values()) == pytest.approx(1)
    assert FedMGDAPlus.leaves_client() == {"weights": "model weights"}


def test_wrong_settings_are_told():
    with pytest.raises(UsageError, match="epsilon"):
        FedMGDAPlus(epsilon=1.5)
