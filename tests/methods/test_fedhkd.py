"""FedHKD: both distances and the server's means by hand, and λ = γ = 0."""

import math
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import nn, tensor
from torch.nn.functional import softmax

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedHKD
from fedstill.methods.fedhkd import HyperKnowledge, Knowing
from fedstill.parts.gather import Everyone


class Twice(nn.Module):
    """Features are the input, the head gives no preference."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def head(self, features: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(features), 2)


def test_the_loss_by_hand() -> None:
    """Sample (3, 4) of class 0, H_0 = (0, 0), Q_0 = (1, 0); class 1 unknown, with a second sample of it.

    CE = ln 2. The head says (½, ½): distance √(¼ + ¼) = .7071, mean over one known class. Features: 5 for the first
    sample, 0 for the second: mean 2.5. With λ = 2 and γ = .1: ln 2 + 1.4142 + .25.
    """
    method = FedHKD(lam=2.0, gamma=0.1)
    knowledge = torch.zeros(2, 2), tensor([[1.0, 0.0], [0.0, 0.0]]), tensor([True, False])
    loss = method.loss(Twice(), tensor([[3.0, 4.0], [9.0, 9.0]]), tensor([0, 1]), *knowledge)
    assert loss.item() == pytest.approx(math.log(2) + math.sqrt(2) + 0.25, rel=1e-5)


def test_the_server_weighs_a_class_by_the_samples_of_it() -> None:
    """Class 0: 1 of 1 sample and 5 of 3 samples: 4. Class 1: nobody now, 7 stays. Weights, by 2 and 6: 3."""
    method = FedHKD(gather=Everyone())
    before = Knowing({"w": tensor([0.0])}, None, tensor([[0.0], [7.0]]), torch.zeros(2, 2), tensor([False, True]))
    uploads = [
        HyperKnowledge({"w": tensor([w])}, tensor([[f], [0.0]]), tensor([[p, 1 - p], [0.0, 0.0]]), tensor([n, 0]))
        for w, f, p, n in ((0.0, 1.0, 1.0, 1), (4.0, 5.0, 0.2, 3))
    ]
    after: Any = method.server(None, before, [Reply(0, 2, uploads[0]), Reply(1, 6, uploads[1])])  # type: ignore[arg-type]
    assert after.features.flatten().tolist() == [4.0, 7.0]
    assert after.predictions[0].tolist() == pytest.approx([0.4, 0.6])
    assert after.weights["w"].item() == 3.0


def test_a_client_tells_the_means_of_its_trained_model() -> None:
    method = FedHKD(lr=0.1, epochs=1)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 1), ready.party(1).data
    _, upload = method.client(env, None, method.download(env, method.init_server(env)), data)
    net: Any = env.module(upload.weights).eval()
    with torch.no_grad():
        features = net.features(data.inputs())
        soft = softmax(net.head(features) / 0.5, -1)
    assert upload.counts.tolist() == data.counts(10).tolist()
    for c in upload.counts.nonzero().flatten().tolist():
        torch.testing.assert_close(upload.features[c], features[data.y == c].mean(0))
        torch.testing.assert_close(upload.predictions[c], soft[data.y == c].mean(0))


def test_without_both_terms_it_is_fedavg_to_the_bit(runs) -> None:
    hkd = FedHKD(epochs=1, lr=0.1, lam=0.0, gamma=0.0)
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "hkd": hkd}.items():
        start(small_experiment(method, rounds=3), out=runs, name=name)
    plain, hkd = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "hkd"))
    assert same_bits(plain.weights, hkd.weights)
