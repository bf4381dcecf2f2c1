"""FedProto: the loss and the server by hand, what a client says of its classes, λ = 0, and different networks."""

from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedProto, FedTGP, Local
from fedstill.methods.local import Nothing
from fedstill.parts.class_knowledge import GlobalPrototypes, Prototypes, prototype_gap
from fedstill.parts.losses import cross_entropy


def scene(method: Any, **settings: Any) -> tuple[Any, Any]:
    ready = stage(small_experiment(method, **settings), Storage())
    return ready.env.at(0, 1), ready.party(1).data


def test_a_step_is_down_the_gradient_of_the_loss() -> None:
    """One step on the whole data: w − lr ∇(CE + λ MSE(features, prototype of the class))."""
    method = FedProto(local_steps=1, batch=10**6, lr=0.5, weight=3.0)
    env, data = scene(method)
    down = GlobalPrototypes(torch.randn(10, 64), torch.arange(10) < 7)
    before = method.init_client(env)
    after, _ = method.client(env, before, down, data)
    net: Any = env.module(before.weights, 1)
    x = data.inputs()
    gap = prototype_gap(net.features(x), data.y, down.means, down.known)
    (cross_entropy(net(x), data.y) + 3.0 * gap).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(after.weights[name], p.detach() - 0.5 * p.grad, atol=1e-5, rtol=1e-4)


def test_a_client_tells_the_mean_features_of_the_classes_it_has() -> None:
    method = FedProto(lr=0.1, epochs=1)
    env, data = scene(method)
    data = data[data.y > 0]
    state, upload = method.client(env, method.init_client(env), method.download(env, method.init_server(env)), data)
    net: Any = env.module(state.weights, 1).eval()
    with torch.no_grad():
        features = net.features(data.inputs())
    assert not upload.seen[0]
    assert not upload.means[0].any()
    for c in upload.seen.nonzero().flatten().tolist():
        torch.testing.assert_close(upload.means[c], features[data.y == c].mean(0))


def test_the_server_averages_over_those_that_have_a_class() -> None:
    """Class 0: 1 and 3 give 2, however many samples they have; class 1: only the second; class 2 stays at 5."""
    env, _ = scene(FedProto())
    before = GlobalPrototypes(tensor([[0.0], [0.0], [5.0]]), tensor([False, False, True]))
    first = Prototypes(tensor([[1.0], [0.0], [0.0]]), tensor([True, False, False]))
    second = Prototypes(tensor([[3.0], [8.0], [0.0]]), tensor([True, True, False]))
    after = FedProto().server(env, before, [Reply(0, 5, first), Reply(1, 500, second)])
    assert after.means.flatten().tolist() == [2.0, 8.0, 5.0]
    assert after.known.all()
    assert FedProto().facts(env, after) == {"known_classes": 3}


@pytest.mark.parametrize("form", [FedProto, FedTGP])
def test_without_prototypes_it_is_local_training_to_the_bit(form: type[FedProto] | type[FedTGP]) -> None:
    method, alone = form(lr=0.1, epochs=2, weight=0.0), Local(lr=0.1, epochs=2)
    env, data = scene(method)
    down = GlobalPrototypes(torch.ones(10, 64), torch.ones(10).bool())
    mine, _ = method.client(env, method.init_client(env), down, data)
    theirs, _ = alone.client(env, alone.init_client(env), Nothing(), data)
    assert same_bits(mine.weights, theirs.weights)


@pytest.mark.parametrize("predict", ["head", "prototypes"])
def test_it_learns_and_both_ways_to_predict_do(predict: str) -> None:
    method = FedProto(lr=0.3, epochs=10, batch=16, predict=predict)  # type: ignore[arg-type]
    result = start(small_experiment(method, active=1.0, rounds=2, alpha=100.0), out=None)
    assert result.models == ["personal"]
    assert result.last("personal")["amp"] > 0.5
    assert result.bytes_by_field()["up"] == {"means": 2 * 6 * 10 * 64 * 4, "seen": 2 * 6 * 10}


def test_networks_may_differ_but_need_a_linear_head_to_predict_by_prototypes() -> None:
    result = start(small_experiment(FedProto(epochs=1), models="mlp,lenet5", rounds=1), out=None)
    assert result.last("personal")["amp"] is not None
    with pytest.raises(UsageError, match="predict = prototypes: client models must end in a single linear layer"):
        start(small_experiment(FedProto(epochs=1, predict="prototypes"), model="lenet5", rounds=1), out=None)
