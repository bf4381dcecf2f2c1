"""FedGen: FedAvg first, then rehearsal with generated features that the clients' heads agree on."""

import math
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method
from torch import nn

from fedstill.core.loop import rounds
from fedstill.core.shelf import Storage
from fedstill.experiment.run import active, start, transport
from fedstill.experiment.stage import Stage, stage


def small(**settings: Any) -> Any:
    return small_method("fedgen", **{"generator_steps": 5, "lr": 0.05, **settings})


def played(method: Any, count: int) -> tuple[Stage, list[Any]]:
    plan = small_experiment(method, rounds=count)
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        return ready, list(rounds(method, ready.env, link, lambda t: active(plan, t), count))


def test_the_first_round_is_fedavg_and_so_is_every_round_without_rehearsal() -> None:
    fedavg = played(small_method("fedavg", lr=0.05), 2)[1]
    usual, idle = played(small(), 2)[1], played(small(alpha=0.0, beta=0.0), 2)[1]
    assert same_bits(fedavg[0].server.weights, usual[0].server.weights)
    assert not same_bits(fedavg[1].server.weights, usual[1].server.weights)
    for name, tensor in fedavg[1].server.weights.items():
        torch.testing.assert_close(idle[1].server.weights[name], tensor)


def test_the_generator_goes_down_only_when_there_is_one() -> None:
    done = played(small(), 2)[1]
    assert done[0].bytes["down"]["generator"] == 0
    floats = (8 + 10) * 256 + 256 + 4 * 256 + 256 * 64 + 64  # noise 8; BatchNorm: two weights, two statistics
    assert done[1].bytes["down"]["generator"] == 3 * (4 * floats + 8)  # and a counter


def test_generated_features_please_the_heads_that_know_the_class() -> None:
    method = small(generator_steps=200, generator_lr=1e-2)
    ready, (done,) = played(method, 1)
    env = ready.env.at(0)
    generator = method.make_generator(env, done.server.generator).eval()
    right = total = 0
    for reply in done.replies:
        known = reply.upload.labels.argmax()  # the class this client has most of
        features = generator(torch.randn(50, 8), known.repeat(50))
        said: torch.Tensor = env.module(reply.upload.weights).head(features)  # type: ignore[operator]
        right, total = right + int((said.argmax(-1) == known).sum()), total + 50
    assert right / total > 0.9


def test_rehearsal_by_hand() -> None:
    """A head that says (2/3, 1/3) whatever the features, three rounds on: each weight × ½³.

    Two classes equally likely: the cross-entropy of a batch with n labels 0 of 4 is (n·log(3/2) + (4 − n)·log 3)/4;
    p(x) = (1/2, 1/2): KL((2/3, 1/3) ‖ p) = 2/3 log 4/3 + 1/3 log 2/3.
    """

    class Stubborn(nn.Module):
        def head(self, features: torch.Tensor) -> torch.Tensor:
            return torch.tensor([math.log(2.0), 0.0]).repeat(len(features), 1)

    method = small(alpha=8.0, beta=16.0, decay=0.5, generator_batch=4)
    env = stage(small_experiment(method), Storage()).env
    env = env.__class__(**{**env.__dict__, "classes": 2}).at(3, 0)
    zeros = torch.zeros(4, dtype=torch.int64)
    drawn = torch.randint(2, (4,), generator=torch.Generator().manual_seed(5))
    n = int((drawn == 0).sum())
    loss = method.rehearse(
        env, Stubborn(), lambda z, y: torch.zeros(len(y), 1), torch.zeros(4, 2), zeros, torch.Generator().manual_seed(5)
    )
    entropy = (n * math.log(1.5) + (4 - n) * math.log(3)) / 4
    gap = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    assert float(loss) == pytest.approx(1 * entropy + 2 * gap)


def test_label_counts_leave_and_both_aggregates_are_told() -> None:
    result = start(small_experiment(small()), out=None)
    assert result.models == ["active", "overall"]
    assert set(result.bytes_by_field()["up"]) == {"weights", "labels"}


def test_without_its_kl_branch_only_the_cross_entropy_of_generated_features_is_left() -> None:
    """FedKF's form: a = 1, b = 0. With logits that agree with nothing the loss stays CE(head(G(ŷ)), ŷ)."""
    method = small(alpha=1.0, beta=0.0)
    ready, done = played(method, 1)
    env, generator = ready.env.at(0, 0), method.make_generator(ready.env, done[0].server.generator).eval()
    module, y = env.module(), torch.tensor([0, 1])
    losses = [
        method.rehearse(env, module, generator, logits, y, torch.Generator().manual_seed(3))
        for logits in (torch.zeros(2, 10), torch.full((2, 10), torch.nan))
    ]
    assert losses[0].item() == losses[1].item()  # what the branch would have seen does not matter
    stream = torch.Generator().manual_seed(3)
    labels = torch.randint(10, (method.generator_batch,), generator=stream)
    made = module.head(generator(method.draw(env, len(labels), stream), labels))
    assert losses[0].item() == pytest.approx(nn.functional.cross_entropy(made, labels).item(), rel=1e-5)


def test_a_generator_of_embeddings_has_two_and_two_layers() -> None:
    """Noise 8 and 10 labels to 256 each; 512 → 256 → 64, BatchNorm before both LeakyReLUs."""
    method = small(form="embeddings")
    done = played(method, 1)[1]
    shapes = {name: tuple(t.shape) for name, t in done[0].server.generator.items() if "weight" in name}
    assert shapes["label.weight"] == (10, 256)
    assert shapes["noise.weight"] == (256, 8)
    assert [shapes[f"body.{place}.weight"] for place in (0, 2, 3, 5)] == [(512,), (256, 512), (256,), (64, 256)]
