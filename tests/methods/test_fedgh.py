"""FedGH and LG-FedAvg: one head for different bodies, trained on class means or averaged."""

from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.config import experiment
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedGH, LGFedAvg, Local
from fedstill.methods.fedgh import GlobalHead
from fedstill.methods.local import Alone, Nothing
from fedstill.parts.averaging import Broadcast
from fedstill.parts.class_knowledge import Prototypes
from fedstill.parts.gather import Update
from fedstill.parts.heads import initial_head, with_head


def scene(method: Any, **settings: Any) -> tuple[Any, Any]:
    ready = stage(small_experiment(method, **settings), Storage())
    return ready.env.at(0, 1), ready.party(1).data


def test_the_head_steps_down_the_gradient_of_the_class_means() -> None:
    """Zero head, one mean (1, 0, …) of class 2, one step at rate 1: p = 1/10 for all.

    Gradient of row c: (p_c − [c = 2]) · features: row 2 gains .9, the others lose .1; biases likewise.
    """
    method = FedGH(server_lr=1.0)
    env, _ = scene(method)
    means, seen = torch.zeros(10, 64), torch.arange(10) == 2
    means[2, 0] = 1.0
    blank = {name: torch.zeros_like(t) for name, t in initial_head(env).items()}
    after = method.server(env, GlobalHead(blank), [Reply(0, 4, Prototypes(means, seen))])
    wanted = torch.full((10,), -0.1)
    wanted[2] = 0.9
    torch.testing.assert_close(after.head["weight"][:, 0], wanted)
    torch.testing.assert_close(after.head["bias"], wanted)
    assert not after.head["weight"][:, 1:].any()


@pytest.mark.parametrize("method", [FedGH(lr=0.1, epochs=2), LGFedAvg(lr=0.1, epochs=2)])
def test_a_turn_is_local_training_from_the_own_body_and_the_global_head(method: Any) -> None:
    env, data = scene(method)
    state, head = method.init_client(env), {n: t + 1 for n, t in initial_head(env).items()}
    down = GlobalHead(head) if isinstance(method, FedGH) else Broadcast(head)
    after, upload = method.client(env, state, down, data)
    begun = with_head(env, state.weights, head, 1)
    alone, _ = Local(lr=0.1, epochs=2).client(env, Alone(dict(begun.state_dict()), {}), Nothing(), data)
    assert same_bits(after.weights, alone.weights)
    if isinstance(method, LGFedAvg):
        trained: Any = env.module(alone.weights, 1)
        assert same_bits(upload.weights, dict(trained.head.state_dict()))


def test_heads_are_averaged_by_samples() -> None:
    """1 with one sample, 5 with three: 4."""
    method = LGFedAvg()
    env, _ = scene(method)
    server = method.init_server(env)
    replies = [Reply(k, n, Update({"bias": tensor([v])})) for k, n, v in ((0, 1, 1.0), (1, 3, 5.0))]
    assert method.server(env, server, replies).weights["bias"].item() == 4.0


@pytest.mark.parametrize("name", ["fedgh", "lg-fedavg"])
def test_bodies_may_differ_but_heads_may_not(name: str) -> None:
    plan = {"lr": 0.2, "epochs": 3, "batch": 8, "name": name}
    result = start(small_experiment(plan, models="mlp,resnet8-slim", active=1.0, rounds=2, alpha=100.0), out=None)
    assert result.last("personal")["amp"] > 0.4
    with pytest.raises(UsageError, match=f"models: {name} shares the head"):
        start(small_experiment({"name": name}, models="mlp,lenet5"), out=None)


def test_a_robust_rule_fits_heads_and_t1_does_not() -> None:
    plan = small_experiment(
        LGFedAvg(epochs=1, gather=experiment({"method": {"name": "fedavg", "gather": "krum"}}).method.gather)
    )
    assert start(plan, out=None).rows[-1]["facts"]["chosen"]
    with pytest.raises(UsageError, match="gather = remember: lg-fedavg has no global model"):
        experiment({"method": {"name": "lg-fedavg", "gather": "remember"}})
