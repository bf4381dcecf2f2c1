"""Robust gathers against numbers derived by hand; alone, in a chain, and at work under attack."""

from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.record import dumps, loads
from fedstill.core.value import build_named, plain
from fedstill.data.kinds import Image
from fedstill.experiment.run import start
from fedstill.methods import FedAvg
from fedstill.parts.gather import Chain, Everyone, Gather, Remember, Update, average
from fedstill.parts.robust import CenteredClipping, ClippedClustering, Krum, MultiKrum, TrimmedMean
from fedstill.parts.trust import Identify


def env_of(count: int) -> Env:
    return Env(seed=1, sizes=(10,) * count, classes=2, kind=Image((1, 1, 1)), build=lambda k, s: torch.nn.Linear(1, 1))


def replies(*points: list[float], samples: int = 10) -> list[Reply[Any]]:
    """Clients whose weights are points of the plane, one tensor a coordinate."""
    return [Reply(k, samples, Update({"x": tensor([p[0]]), "y": tensor([[p[1]]])})) for k, p in enumerate(points)]


ORIGIN = {"x": tensor([0.0]), "y": tensor([[0.0]])}


def gathered(rule: Gather, given: list[Reply[Any]], rounds: int = 1) -> tuple[Any, list[Reply[Any]]]:
    state, kept = rule.init(env_of(len(given)), ORIGIN), given
    for t in range(rounds):
        state, kept = rule.gather(env_of(len(given)).at(t), state, given)
    return state, kept


def point(reply: Reply[Any]) -> list[float]:
    weights = reply.upload.weights
    return [float(weights["x"]), float(weights["y"])]


FIVE = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [100.0, 100.0]]


def test_krum_by_hand() -> None:
    """n = 5, f = 1: the n − f − 1 = 3 nearest others. Squared distances among the first four:

    0: 1 4 9 → 14. 1: 1 5 4 → 10. 2: 4 5 13 → 22. 3: 9 4 13 → 26. The fifth is 18,000 and more away from everybody.
    Client 1 has the least; Multi-Krum keeps all but the fifth.
    """
    state, kept = gathered(Krum(), replies(*FIVE))
    assert [r.client for r in kept] == [1]
    assert Krum().facts(env_of(5), state) == {"chosen": [1]}
    state, kept = gathered(MultiKrum(), replies(*FIVE))
    assert [r.client for r in kept] == [0, 1, 2, 3]
    assert MultiKrum().facts(env_of(5), state) == {"trusted": [0, 1, 2, 3], "answered": [0, 1, 2, 3, 4]}


def test_krum_is_not_blinded_by_where_the_model_is() -> None:
    """Small steps around weights of a thousand: distances come from differences, not from cancelled squares."""
    far = [[1000.0 + x * 2.0**-13, 1000.0 + y * 2.0**-13] for x, y in FIVE]
    assert [r.client for r in gathered(Krum(), replies(*far))[1]] == [1]


def test_trimmed_mean_by_hand() -> None:
    """x: 0 0 1 3 100 without the ends is 0 1 3 → 4/3; y: 0 0 0 2 100 → 2/3. Everyone is given it."""
    _, kept = gathered(TrimmedMean(), replies(*FIVE))
    assert len(kept) == 5
    for reply in kept:
        assert point(reply) == pytest.approx([4 / 3, 2 / 3])


def test_trimmed_mean_of_counters_is_a_whole_number() -> None:
    given = [Reply(k, 1, Update({"seen": tensor(n)})) for k, n in enumerate([1, 4, 5, 6, 90])]
    kept = TrimmedMean().gather(env_of(5), None, given)[1]
    assert kept[0].upload.weights["seen"].item() == 5
    assert kept[0].upload.weights["seen"].dtype == torch.int64


def test_centred_clipping_by_hand() -> None:
    """τ = 5 about (0, 0): (3, 4) is 5 long and stays, (0, 20) becomes (0, 5); the mean is (1.5, 4.5).

    From there in a second pass: (1.5, −.5) is short and stays (3, 4); (−1.5, 15.5) is √242.5 long and is cut to 5.
    """
    given = replies([3.0, 4.0], [0.0, 20.0])
    state, kept = gathered(CenteredClipping(tau=5.0), given)
    assert [point(r) for r in kept] == [[3.0, 4.0], [0.0, 5.0]]
    assert point(Reply(0, 1, Update(state.weights))) == [1.5, 4.5]
    cut = 5 / 242.5**0.5
    twice = gathered(CenteredClipping(tau=5.0, iterations=2), given)[1]
    assert point(twice[1]) == pytest.approx([1.5 - 1.5 * cut, 4.5 + 15.5 * cut])
    assert [point(r) for r in gathered(CenteredClipping(tau=5.0), given, rounds=2)[1]][1] == pytest.approx(
        point(twice[1])
    )


def test_centred_clipping_without_tau_takes_the_median_step() -> None:
    """Steps of 1, 2 and 600: the last is cut to 2."""
    _, kept = gathered(CenteredClipping(), replies([1.0, 0.0], [0.0, 2.0], [600.0, 0.0]))
    assert [point(r) for r in kept] == [[1.0, 0.0], [0.0, 2.0], [pytest.approx(2.0), 0.0]]


def test_clipped_clustering_by_hand() -> None:
    """Three clients go right, by 1, 2 and 9, one left by 40: lengths 1 2 9 40, median 5.5.

    The first three stay together (cosine 1 against −1); 9 is cut to 5.5.
    """
    state, kept = gathered(ClippedClustering(), replies([1.0, 0.0], [2.0, 0.0], [-40.0, 0.0], [9.0, 0.0]))
    assert [r.client for r in kept] == [0, 1, 3]
    assert [point(r)[0] for r in kept] == pytest.approx([1.0, 2.0, 5.5])
    assert sorted(state.lengths.tolist()) == pytest.approx([1.0, 2.0, 9.0, 40.0])
    assert float(state.weights["x"]) == pytest.approx(8.5 / 3)
    assert ClippedClustering().facts(env_of(4), state) == {"trusted": [0, 1, 3], "answered": [0, 1, 2, 3]}


@pytest.mark.parametrize("rule", [Krum(), MultiKrum(), TrimmedMean(), CenteredClipping(), ClippedClustering()])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_rounds_and_equal_replies_are_no_trouble(rule: Gather, count: int) -> None:
    """However few answer, and if all say the same, what comes out is what they say; the state survives the disk."""
    state, kept = gathered(rule, replies(*[[2.0, 1.0]] * count))
    assert kept
    assert point(Reply(0, 1, Update(average(kept)))) == pytest.approx([2.0, 1.0])
    loads(dumps(state))


def test_how_many_may_be_forged_is_always_less_than_half() -> None:
    """A fifth of 20 is 4, of 6 it is 2 (rounded up), of 3 and 2 at most 1 and 0; 49 % of 4 is 1, not 2."""
    assert [MultiKrum().forged(n) for n in (20, 6, 3, 2, 1)] == [4, 2, 1, 0, 0]
    assert TrimmedMean(tolerate=0.49).forged(4) == 1
    with pytest.raises(UsageError, match=r"tolerate = 0.5: must be < 0.5"):
        Krum(tolerate=0.5)


def test_a_chain_remembers_only_what_the_rule_lets_through() -> None:
    """Five clients, all slots at 0. Multi-Krum drops the fifth, so ŵ = (0 + 1 + 0 + 3 + 0)/5, (0 + 0 + 2 + 0 + 0)/5.

    After a trimmed mean every slot holds it: (4/3, 2/3).
    """
    for rule, expected in ((MultiKrum(), [0.8, 0.4]), (TrimmedMean(), [4 / 3, 2 / 3])):
        chain = Chain((rule, Remember()))
        state, kept = gathered(chain, replies(*FIVE))
        overall = chain.models(env_of(5), state)["overall"]
        assert [float(overall["x"]), float(overall["y"])] == pytest.approx(expected)
        assert "overall_drift" in chain.facts(env_of(5), state)
        assert len(kept) == (4 if isinstance(rule, MultiKrum) else 5)


def test_a_chain_of_two_rules_tells_who_answered_first_and_who_is_left() -> None:
    chain = Chain((MultiKrum(), MultiKrum()))
    facts = chain.facts(env_of(5), gathered(chain, replies(*FIVE))[0])
    assert facts["answered"] == [0, 1, 2, 3, 4]
    assert set(facts["trusted"]) < {0, 1, 2, 3}


def test_a_chain_comes_from_a_config_file_and_goes_back() -> None:
    spec = {"name": "chain", "gathers": [{"name": "krum", "tolerate": 0.1}, "remember"]}
    chain = build_named(Gather, spec)
    assert chain == Chain((Krum(tolerate=0.1), Remember()))
    assert build_named(Gather, plain(chain)) == chain
    assert build_named(Gather, {"name": "chain", "gathers": "multi-krum,remember"}) == Chain((MultiKrum(), Remember()))


def test_chains_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Chain(())
    with pytest.raises(UsageError, match=r"^gather = chain: slots = client: .* use slots = server"):
        small_experiment(small_method("fedavg", gather=Chain((Krum(), Remember(slots="client")))))


@pytest.mark.parametrize(
    ("method", "gather"),
    [("fedtkd", Krum()), ("fedmd", Remember()), ("fedavg", Identify()), ("fedtkd", Chain((Identify(), TrimmedMean())))],
)
def test_a_gather_that_does_not_fit_is_refused_before_anything_runs(method: str, gather: Gather) -> None:
    with pytest.raises(UsageError, match=r"^gather = [a-z]+: works on "):
        small_experiment(small_method(method, gather=gather))


def attacked(gather: Gather) -> float:
    plan = {"samples": 0, "clients": 20, "active": 1.0, "rounds": 3, "alpha": 100.0, "attack": "sign-flip"}
    method = FedAvg(lr=0.2, epochs=3, batch=16, gather=gather)
    result = start(small_experiment(method, malicious="1,3,5,7", evaluate_every=3, **plan), out=None)
    return float(result.last("active")["accuracy"])


def test_fedavg_fails_when_a_fifth_of_its_clients_go_the_other_way() -> None:
    """16 honest steps and 4 reversed and tenfold ones: the average goes 1.2 steps back each round."""
    assert attacked(Everyone()) < 0.3


RULES = [Krum(), MultiKrum(), TrimmedMean(), CenteredClipping(), ClippedClustering(), Chain((MultiKrum(), Remember()))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_with_a_robust_rule_it_does_not(rule: Gather) -> None:
    assert attacked(rule) > 0.8
