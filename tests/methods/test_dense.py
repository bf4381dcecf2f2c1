"""DENSE and Co-Boosting: losses, shares and statistics by hand, and a student that learns without data."""

import math
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import nn, tensor

from fedstill.core.errors import UsageError
from fedstill.core.shelf import Storage
from fedstill.experiment.presets import read_preset
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import DENSE, CoBoosting, FedAvg
from fedstill.parts.averaging import Broadcast
from fedstill.parts.losses import kl_each
from fedstill.parts.one_shot import Ensemble, statistics


def test_the_divergence_by_hand() -> None:
    """(¾, ¼) against (½, ½): ¾ ln(3/2) + ¼ ln(1/2), for each sample."""
    found = kl_each(tensor([[math.log(3), 0.0]] * 2), torch.zeros(2, 2))
    assert found.tolist() == pytest.approx([0.75 * math.log(1.5) + 0.25 * math.log(0.5)] * 2)


def test_dense_challenges_only_where_the_student_is_wrong() -> None:
    """The first sample's classes agree and counts 0; the second's differ: half of its divergence is the mean."""
    ensemble, student = tensor([[2.0, 0.0], [2.0, 0.0]]), tensor([[1.0, 0.0], [0.0, 1.0]])
    wanted = kl_each(ensemble, student)[1].item() / 2
    assert DENSE().challenge(ensemble, student).item() == pytest.approx(wanted)
    assert CoBoosting().challenge(ensemble, student).item() == pytest.approx(kl_each(ensemble, student).mean().item())


def test_a_hard_sample_counts_more() -> None:
    """p_y = ½ and ¾: (½ ln 2 + ¼ ln(4/3))/2; the difficulty itself gets no gradient: that of sample 1 is −½·½."""
    logits = tensor([[0.0, 0.0], [math.log(3), 0.0]], requires_grad=True)
    loss = CoBoosting().label_loss(logits, tensor([0, 0]))
    assert loss.item() == pytest.approx((0.5 * math.log(2) + 0.25 * math.log(4 / 3)) / 2)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 0].item() == pytest.approx(0.5 * -0.5 / 2)


class Says(nn.Module):
    """A member that always gives the same logits."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = tensor(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def test_shares_move_to_those_that_are_right() -> None:
    """Two members, ½ each, say class 0 and class 1; the sample is of class 0. μ = .4 over 2 members: a step of .2.

    After one batch .7 and .3; after ten they have come to the ends of [0, 1].
    """
    ensemble = Ensemble([Says(1.0, 0.0), Says(0.0, 1.0)], tensor([0.5, 0.5]))
    method, batch = CoBoosting(mu=0.4, mu_decay=1.0), (torch.zeros(1, 1), tensor([0]))
    assert ensemble(torch.zeros(1, 1)).tolist() == [[0.5, 0.5]]
    assert method.reweighted(ensemble, iter([batch]), 1).tolist() == pytest.approx([0.7, 0.3])
    assert method.reweighted(ensemble, iter([batch] * 10), 1).tolist() == [1.0, 0.0]
    assert DENSE().reweighted(ensemble, iter([batch]), 1).tolist() == [0.5, 0.5]


def test_a_sample_is_moved_by_epsilon_in_every_number() -> None:
    linear = nn.Linear(3, 2)
    ensemble, x = Ensemble([linear], tensor([1.0])), torch.randn(4, 3)
    moved = CoBoosting(epsilon=0.1).hardened(x, ensemble, torch.Generator().manual_seed(0))
    torch.testing.assert_close((moved - x).abs(), torch.full((4, 3), 0.1))
    assert CoBoosting(epsilon=0.0).hardened(x, ensemble, torch.Generator()) is x
    assert DENSE().hardened(x, ensemble, torch.Generator()) is x


def test_statistics_by_hand() -> None:
    """A batch of 1 and 3: mean 2, variance 1, against 0 and 1: 2 + 0. Outside, nothing is compared."""
    layer = nn.BatchNorm1d(1).eval()
    with statistics([layer]) as apart:
        layer(tensor([[1.0], [3.0]]))
    layer(torch.zeros(2, 1))
    assert [a.item() for a in apart] == pytest.approx([2.0])


@pytest.mark.parametrize("term", ["lambda_bn", "lambda_div"])
def test_both_terms_move_the_generator(term: str) -> None:
    """A member with BatchNorm, another network as student: with the term another batch comes out than without."""
    light = {"synthesis_steps": 3, "synthetic": 8, "noise": 4, "channels": 4}
    env = stage(small_experiment("dense", model="resnet8-slim-bn", samples=100), Storage()).env.at(0)
    made = []
    for weight in (0.0, 5.0):
        ensemble = Ensemble([env.build(0, 1).eval()], tensor([1.0]))
        method = CoBoosting(**{"lambda_bn": 1.0, "lambda_div": 1.0, **light, term: weight})
        made.append(method.generate(env, ensemble, env.build(0, 2).eval(), torch.Generator().manual_seed(1))[0])
    assert not torch.equal(*made)


@pytest.mark.parametrize("method", [DENSE(), CoBoosting()], ids=["dense", "co-boosting"])
def test_the_student_learns_what_the_teacher_knows_from_no_data(method: Any) -> None:
    """Two clients with IID digits; the student begins anew and never sees a sample, yet tells most digits."""
    light = {"generations": 12, "synthesis_steps": 8, "synthetic": 64, "noise": 32, "generator_lr": 0.02}
    plan = small_experiment(
        type(method)(lr=0.1, epochs=20, distill_lr=0.1, distill_batch=32, **light),
        clients=2, active=1.0, rounds=1, partition="iid", samples=600,
    )  # fmt: skip
    result = start(plan, out=None)
    assert result.last("personal")["accuracy"] > 0.8
    assert result.last("global")["accuracy"] > 0.5
    facts = result.rows[-1]["facts"]
    assert facts["agreement"] > 0.7
    assert set(facts["shares"]) == {"0", "1"}


def test_a_turn_is_fedavgs_and_a_network_of_another_form_starts_from_its_own_model() -> None:
    method = DENSE(lr=0.1, epochs=1)
    ready = stage(small_experiment(method, models="mlp,resnet8-slim"), Storage())
    for client in (0, 5):
        env, data = ready.env.at(0, client), ready.party(client).data
        down, state = Broadcast(env.initial()), method.init_client(env)
        _, upload = method.client(env, state, down, data)
        if client == 0:
            assert same_bits(upload.weights, FedAvg(lr=0.1, epochs=1).client(env, None, down, data)[1].weights)
        else:
            assert upload.weights.keys() == state.weights.keys() != down.weights.keys()


def test_a_robust_rule_needs_networks_of_one_form() -> None:
    plan = {"name": "dense", "gather": "krum"}
    with pytest.raises(UsageError, match="gather = krum: works on models of one form"):
        start(small_experiment(plan, models="mlp,resnet8-slim"), out=None)


@pytest.mark.parametrize("name", ["dense", "co-boosting"])
def test_a_table_of_every_method_gives_it_one_round_with_everybody(name: str) -> None:
    cells = [cell for cell in read_preset("leaderboard/board").cells() if cell.row == name]
    assert cells
    assert all((cell.settings["rounds"], cell.settings["active"]) == (1, 1.0) for cell in cells)
    others = [cell for cell in read_preset("leaderboard/board").cells() if cell.row == "fedavg"]
    assert all(cell.settings["rounds"] > 1 for cell in others)
