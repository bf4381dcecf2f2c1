"""FedKD: factors and losses by hand, what is refused, and what no compression and no distillation leave."""

import doctest
import math
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import nn, tensor

import fedstill.parts.low_rank
from fedstill.core.method import Reply
from fedstill.core.record import dumps, fault, loads, sizes
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedKD
from fedstill.methods.fedkd import Mentee
from fedstill.parts.low_rank import LowRank, compressed, factored, misshapen, restored
from fedstill.parts.mutual import adaptive_losses
from fedstill.parts.robust_means import Median


def test_examples() -> None:
    assert doctest.testmod(fedstill.parts.low_rank).failed == 0


def test_the_rank_by_hand() -> None:
    """σ² = 16, 4, 1 of 21: 16/21 = .762, 20/21 = .952. So .7 needs 1, .9 needs 2, .96 and 1 need 3."""
    matrix = torch.diag(tensor([4.0, 2.0, 1.0]))
    ranks = [factored(matrix, energy)[0].shape[1] for energy in (0.7, 0.9, 0.96, 1.0)]
    assert ranks == [1, 2, 3, 3]
    left, right = factored(matrix, 0.9)
    torch.testing.assert_close(left @ right, torch.diag(tensor([4.0, 2.0, 0.0])))


def test_a_tensor_goes_whole_where_factors_are_not_smaller() -> None:
    """Rank 1 of 8×8: 16 numbers instead of 64. Of 2×2: 4 instead of 4, so whole. A bias is whole."""
    change = {"big": torch.ones(8, 2, 2, 2), "small": torch.ones(2, 2), "bias": torch.ones(8)}
    factors = compressed(change, 0.9)
    assert {name: sorted(parts) for name, parts in factors.items()} == {
        "big": ["left", "right"], "small": ["whole"], "bias": ["whole"],
    }  # fmt: skip
    assert sum(p.numel() for p in factors["big"].values()) == 16
    for name, tensor_ in restored(factors, change).items():
        torch.testing.assert_close(tensor_, change[name])


def test_factors_that_do_not_fit_are_refused() -> None:
    form = {"w": torch.zeros(4, 3)}
    good = {"w": {"left": torch.zeros(4, 1), "right": torch.zeros(1, 3)}}
    assert misshapen(good, form) is None
    for bad in (
        {"v": good["w"]},
        {"w": {"left": torch.zeros(4, 1), "right": torch.zeros(2, 3)}},
        {"w": {"left": torch.zeros(5, 1), "right": torch.zeros(1, 3)}},
        {"w": {"whole": torch.zeros(3, 4)}},
        {"w": {}},
    ):
        assert misshapen(bad, form) is not None
    whole = LowRank({"w": {"whole": torch.zeros(4, 3)}})
    assert fault(LowRank(good), whole) is None, "how many factors there are is free"
    endless = LowRank({"w": {"whole": torch.full((4, 3), torch.nan)}})
    assert "not finite" in str(fault(endless, whole))


def test_the_losses_by_hand() -> None:
    """Both say (0, 0) but the mentee (ln 3, 0); label 0: CE ln 2 and ln 4/3, their sum S = ln 8/3.

    Mentor: ln 2 + (¾ ln(3/2) + ¼ ln(1/2) + 1)/S, features 1 against W_h·2 = 0 (W_h = 0).
    Mentee: ln 4/3 + (½ ln(2/3) + ½ ln 2 + 1)/S.
    """
    bridge = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(bridge.weight)
    features, logits = [tensor([[1.0]]), tensor([[2.0]])], [torch.zeros(1, 2), tensor([[math.log(3), 0.0]])]
    mentor, mentee, link = adaptive_losses(features, logits, tensor([0]), bridge)
    total = math.log(8 / 3)
    taught = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert mentor.item() == pytest.approx(math.log(2) + (taught + 1) / total, rel=1e-5)
    teaching = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert mentee.item() == pytest.approx(math.log(4 / 3) + (teaching + 1) / total, rel=1e-5)
    assert link.item() == pytest.approx(1 / total, rel=1e-5)


def test_the_energy_rises_over_the_rounds() -> None:
    env = stage(small_experiment(FedKD()), Storage()).env
    method = FedKD(energy_start=0.5, energy_end=0.9, ramp=4)
    assert [method.energy(env.at(t)) for t in (0, 2, 4, 9)] == pytest.approx([0.5, 0.7, 0.9, 0.9])


def test_the_server_adds_the_mean_change() -> None:
    """w = 1; changes 1 (one sample) and 5 (three): 1 + 4 = 5."""
    replies = [Reply(k, n, LowRank({"w": {"whole": tensor([v])}})) for k, n, v in ((0, 1, 1.0), (1, 3, 5.0))]
    after = FedKD().server(None, Mentee({"w": tensor([1.0])}, 1.0), replies)  # type: ignore[arg-type]
    assert after.weights["w"].item() == 5.0
    assert after.sent == 1.0


def test_with_all_energy_and_no_distillation_the_mentee_is_fedavgs(runs) -> None:
    """Up to rounding: the change travels, not the weights."""
    kd = FedKD(epochs=1, lr=0.1, distil=0.0, energy_start=1.0, energy_end=1.0)
    for name, method in {"plain": FedAvg(epochs=1, lr=0.1), "kd": kd}.items():
        start(small_experiment(method, rounds=3), out=runs, name=name)
    plain, found = (RunDir.open(runs / name).latest()[0].server for name in ("plain", "kd"))
    for name, weights in plain.weights.items():
        torch.testing.assert_close(found.weights[name], weights, atol=1e-5, rtol=1e-4)


def test_fewer_bytes_go_up_than_down_and_networks_may_differ() -> None:
    method: Any = FedKD(lr=0.2, epochs=4, batch=8, energy_start=0.8, energy_end=0.9)
    plan = small_experiment(method, active=1.0, alpha=100.0, models="mlp,resnet8-slim", server_model="mlp")
    result = start(plan, out=None)
    assert result.models == ["mentee", "personal"]
    assert result.last("mentee")["amp"] > 0.4
    assert result.bytes()["up"] < 0.5 * result.bytes()["down"]
    assert result.rows[-1]["facts"]["sent"] < 0.5


def test_both_ways_the_step_comes_down_in_factors_and_every_copy_is_the_servers() -> None:
    """Clients 0 and 1 of three take turns 1, 2 and 3; client 2 comes in turn 3 and gets the whole."""
    method = FedKD(lr=0.2, epochs=2, energy_start=0.6, energy_end=0.6, both_ways=True)
    assert (FedKD().one_download, method.one_download) == (True, False)
    ready = stage(small_experiment(method, clients=3, active=1.0), Storage())
    server, states = method.init_server(ready.env), {}
    spent = []
    for turn, active in enumerate(((0, 1), (0, 1), (0, 1, 2))):
        replies, down = [], {}
        for k in active:
            env = ready.env.at(turn, k)
            down[k] = loads(dumps(method.download(env, server)))
            states[k], upload = method.client(
                env, states.get(k) or method.init_client(env), down[k], ready.party(k).data
            )
            assert same_bits(states[k].mentee.weights, server.weights), "the client has the server's mentee"
            replies.append(Reply(k, 10, upload))
        spent.append({k: sum(sizes(copy).values()) for k, copy in down.items()})
        server = method.server(ready.env.at(turn), server, replies)
    assert spent[1][0] < 0.5 * spent[0][0]
    assert spent[2][2] == spent[0][0], "a newcomer gets the weights"
    assert spent[2][0] < 0.5 * spent[2][2]


def test_a_gather_sees_the_mentees_that_factors_stand_for() -> None:
    """From w = 1 three clients of one sample each move by 1, 2 and 90: the mean of the changes is 31, the median 2."""
    plan = small_experiment(FedKD(), clients=3, active=1.0)
    env = stage(plan, Storage()).env
    start_at = {name: torch.ones_like(tensor_) for name, tensor_ in env.form().items()}
    changes = [{name: torch.full_like(t, by) for name, t in start_at.items()} for by in (1.0, 2.0, 90.0)]
    replies = [Reply(k, 1, LowRank(compressed(change, 1.0))) for k, change in enumerate(changes)]
    for method, wanted in ((FedKD(), 32.0), (FedKD(gather=Median()), 3.0)):
        after = method.server(env, Mentee(start_at, 1.0), replies)
        for tensor_ in after.weights.values():
            torch.testing.assert_close(tensor_, torch.full_like(tensor_, wanted))
