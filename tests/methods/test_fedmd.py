"""FedMD: consensus, digest, alignment samples, and a public set whose classes are others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smallest import small_experiment
from torch import nn, tensor

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedMD
from fedstill.parts.learner import predict
from fedstill.parts.public_logits import PublicLogits, Voice, Wisdom


def staged(method: FedMD, **settings: Any) -> Any:
    return stage(small_experiment(method, public=0.2, **settings), Storage())


def test_the_consensus_is_the_plain_mean_and_its_accuracy_is_told() -> None:
    """Three clients, of 60, 600 and 60 samples: their logits count the same, and two of three outweigh the third."""
    method = FedMD()
    env = staged(method).env
    labels, index = env.public.y, torch.arange(len(env.public))
    right = torch.eye(env.classes)[labels]
    wrong = torch.eye(env.classes)[(labels + 1) % env.classes]
    said = [3 * right, 2 * wrong, right]
    replies = [Reply(k, n, PublicLogits(u, index)) for k, (u, n) in enumerate(zip(said, [60, 600, 60], strict=True))]
    server = method.server(env, method.init_server(env), replies)
    torch.testing.assert_close(server.wisdom.logits, (4 * right + 2 * wrong) / 3)
    facts = method.facts(env, server)
    assert facts["answered"] == [0, 1, 2]
    assert facts["client_logits"] == [1.0, 0.0, 1.0]
    assert facts["global_logits"] == 1.0
    assert "class_weights" not in facts


def turned(method: FedMD, env: Any, data: Any, down: Wisdom, turns: int) -> torch.Tensor:
    """The client's public logits after a turn, the private epochs left out."""
    state = method.init_client(env)
    voice = Voice(env.module(state.weights, env.client), None)
    learner = method.learner(env, voice)
    method.study(env, learner, turns, down)
    return predict(voice, env.public.inputs())


def test_digesting_brings_the_logits_to_the_consensus() -> None:
    """The mean absolute distance to a consensus of ±1 falls well below its 1 or so at the start."""
    method = FedMD(lr=0.01, digest=60)
    ready = staged(method)
    env = ready.env.at(1, 0)
    consensus = (
        torch.randint(0, 2, (len(env.public), env.classes), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    )
    consensus = consensus[env.public.y]  # learnable: the same for all samples of a class
    down = Wisdom(consensus, torch.arange(len(consensus)), None)
    before = turned(method, env, None, Wisdom(None, None, None), turns=1)
    after = turned(method, env, None, down, turns=1)
    assert (after - consensus).abs().mean() < 0.4 * (before - consensus).abs().mean()


def test_public_labels_are_learned_in_the_first_turn_only() -> None:
    method = FedMD(lr=0.01, pretrain=20)
    env = staged(method).env.at(0, 0)
    nothing = Wisdom(None, None, None)
    first, later = (turned(method, env, None, nothing, turns) for turns in (0, 1))
    right = [float((logits.argmax(-1) == env.public.y).float().mean()) for logits in (first, later)]
    assert right[0] > 0.85
    assert right[1] < 0.3, "no lessons: the initial weights"
    without = turned(FedMD(pretrain=0), env, None, nothing, 0)
    torch.testing.assert_close(without, later)


def test_alignment_samples_are_drawn_anew_each_round_the_same_for_all() -> None:
    method = FedMD(alignment=20)
    env = staged(method).env
    drawn = [method.rows(env.at(t, 3)) for t in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], method.rows(env.at(1)))
    assert not torch.equal(drawn[0], drawn[2])
    assert len(drawn[0].unique()) == 20
    assert FedMD(alignment=10**6).rows(env).tolist() == list(range(len(env.public)))


def test_a_run_with_alignment_samples_talks_of_these_alone() -> None:
    result = start(small_experiment(FedMD(alignment=20), active=1.0, rounds=2, public=0.2), out=None)
    assert result.bytes_by_field()["up"]["logits"] == 2 * 6 * 20 * 10 * 4
    assert all(not row["missing"] for row in result.rows)
    assert 0 <= result.rows[-1]["facts"]["global_logits"] <= 1


def test_a_public_set_of_other_classes_gets_a_head_of_its_own(tmp_path: Path) -> None:
    """Four public classes, ten private ones: logits of four travel, the private model has ten and learns."""
    draw = np.random.default_rng(0)
    y = np.arange(80) % 4
    x = (draw.integers(0, 60, (80, 8, 8)) + 60 * (np.arange(8) // 2 == y[:, None, None])).astype(np.uint8)
    file = tmp_path / "stripes.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    plan = small_experiment(FedMD(lr=0.01, pretrain=5, epochs=3), active=1.0, public=str(file), alpha=100.0, rounds=2)
    ready = stage(plan, Storage())
    assert ready.env.public_classes == 4
    assert ready.env.classes == 10
    result = start(plan, out=None)
    assert result.bytes_by_field()["up"]["logits"] == 2 * 6 * 80 * 4 * 4
    assert result.rows[-1]["facts"]["global_logits"] > 0.8
    assert result.last("personal")["accuracy"] > 0.4


def test_a_second_head_reads_the_features() -> None:
    class Plain(nn.Module):
        width = 2

        def features(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -x

    x = tensor([[1.0, 2.0]])
    assert Voice(Plain(), None)(x).tolist() == [[-1.0, -2.0]]
    voice = Voice(Plain(), 3)
    with torch.no_grad():
        voice.head[0].weight.copy_(tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))  # type: ignore[union-attr,operator]
        voice.head[0].bias.zero_()  # type: ignore[union-attr,operator]
    assert voice(x).tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("active", [0.5, 1.0])
def test_clients_that_come_late_are_pretrained_when_they_come(active: float) -> None:
    result = start(small_experiment(FedMD(), active=active, rounds=3, public=0.2), out=None)
    for row in result.rows:
        assert row["facts"]["answered"] == row["active"]
        assert len(row["facts"]["client_logits"]) == len(row["active"])
