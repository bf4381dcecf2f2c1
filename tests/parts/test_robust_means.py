"""Medians, mixing and bucketing against numbers derived by hand, and at work under attack."""

from typing import Any

import pytest
import torch
from smallest import small_experiment
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.data.kinds import Image
from fedstill.experiment.run import start
from fedstill.methods import FedAvg
from fedstill.parts.gather import Chain, Gather, Remember, Update, average
from fedstill.parts.robust import Krum, TrimmedMean
from fedstill.parts.robust_means import Bucketing, GeometricMedian, Median, NearestNeighbourMixing


def env_of(count: int) -> Env:
    return Env(seed=1, sizes=(10,) * count, classes=2, kind=Image((1, 1, 1)), build=lambda k, s: torch.nn.Linear(1, 1))


def gathered(rule: Gather, *points: tuple[float, ...]) -> list[list[float]]:
    """What passes, as points: each reply's weights are a point, one tensor a coordinate."""
    given: list[Reply[Any]] = [
        Reply(k, 10, Update({str(i): tensor([v]) for i, v in enumerate(point)})) for k, point in enumerate(points)
    ]
    _, kept = rule.gather(env_of(len(points)), rule.init(env_of(len(points)), None), given)
    return [[t.item() for t in reply.upload.weights.values()] for reply in kept]


def test_the_median_by_hand() -> None:
    """x: 0, 1, 50 → 1; y: 2, 8, 5 → 5. Of four values 0, 1, 3, 9 the mean of 1 and 3: 2."""
    assert gathered(Median(), (0.0, 2.0), (1.0, 8.0), (50.0, 5.0)) == [[1.0, 5.0]] * 3
    assert gathered(Median(), (9.0,), (0.0,), (3.0,), (1.0,)) == [[2.0]] * 4


def test_counters_have_a_median_too() -> None:
    replies = [Reply(k, 1, Update({"count": tensor(n)})) for k, n in enumerate((3, 4))]
    _, kept = Median().gather(env_of(2), None, replies)
    assert kept[0].upload.weights["count"].dtype == torch.int64
    assert int(kept[0].upload.weights["count"]) in (3, 4)


def test_the_geometric_median_by_hand() -> None:
    """On a line it is the median: of 0, 1 and 100 it is 1, where the mean is 33.7.

    Of the corners (0, 0), (2, 0), (0, 2), (2, 2) it is the centre (1, 1), where the diagonals cross; pulling one corner
    out along its diagonal to (200, 200) changes nothing, since the diagonals still cross there.
    """
    assert gathered(GeometricMedian(iterations=200), (0.0,), (1.0,), (100.0,))[0] == pytest.approx([1.0], abs=0.05)
    corners = [(0.0, 0.0), (2.0, 0.0), (0.0, 2.0)]
    assert gathered(GeometricMedian(), *corners, (2.0, 2.0))[0] == pytest.approx([1.0, 1.0])
    far = gathered(GeometricMedian(iterations=500), *corners, (200.0, 200.0))[0]
    assert far == pytest.approx([1.0, 1.0], abs=0.05)


def test_one_step_of_weiszfeld_by_hand() -> None:
    """0, 0 and 3: the mean is 1, distances 1, 1, 2, so shares 1 : 1 : ½, and z = 1.5/2.5 = .6."""
    assert gathered(GeometricMedian(iterations=1), (0.0,), (0.0,), (3.0,))[0] == pytest.approx([0.6])


def test_replies_that_all_agree_are_their_own_median() -> None:
    assert gathered(GeometricMedian(), (5.0,), (5.0,), (5.0,)) == [[5.0]] * 3


def test_nearest_neighbour_mixing_by_hand() -> None:
    """Five points on a line, one may be forged: each becomes the mean of its four nearest, itself included.

    0, 1, 2, 3, 100: the first four each leave 100 out: 1.5; 100 takes 1, 2, 3 and itself: 26.5.
    """
    mixed = gathered(NearestNeighbourMixing(tolerate=0.2), (0.0,), (1.0,), (2.0,), (3.0,), (100.0,))
    assert [point[0] for point in mixed] == [1.5, 1.5, 1.5, 1.5, 26.5]


def test_buckets_by_hand() -> None:
    """Five replies in buckets of two: three pass, whose samples are 20, 20 and 10; the sum of n w is what it was."""
    given = [Reply(k, 10, Update({"w": tensor([2.0**k])})) for k in range(5)]
    _, kept = Bucketing(size=2).gather(env_of(5), None, given)
    assert sorted(r.samples for r in kept) == [10, 20, 20]
    assert average(kept)["w"].item() == pytest.approx(31 / 5)
    assert [r.client for r in kept] == sorted(r.client for r in kept)
    shuffled = {
        tuple(r.upload.weights["w"].item() for r in Bucketing().gather(env_of(5).at(t), None, given)[1])
        for t in range(6)
    }
    assert len(shuffled) > 1, "shuffled anew in every round"


def test_buckets_of_one_are_the_replies() -> None:
    assert sorted(gathered(Bucketing(size=1), (1.0,), (2.0,))) == [[1.0], [2.0]]


RULES = [
    Median(),
    GeometricMedian(),
    Chain((NearestNeighbourMixing(), Krum())),
    Chain((Bucketing(), TrimmedMean(tolerate=0.4))),
]


def test_buckets_are_nobodys_and_cannot_be_remembered() -> None:
    with pytest.raises(UsageError, match="remember after bucketing would hold buckets, not clients; put it before"):
        small_experiment(FedAvg(gather=Chain((Bucketing(), Remember()))))
    assert small_experiment(FedAvg(gather=Chain((Remember(), Bucketing()))))


@pytest.mark.parametrize("rule", RULES, ids=["median", "geometric", "mixing", "bucketing"])
def test_with_a_rule_fedavg_learns_though_a_fifth_of_its_clients_go_the_other_way(rule: Gather) -> None:
    plan = {"clients": 10, "active": 1.0, "rounds": 3, "alpha": 100.0, "attack": "sign-flip", "malicious": "1,3"}
    method = FedAvg(lr=0.2, epochs=3, batch=8, gather=rule)
    result = start(small_experiment(method, samples=600, evaluate_every=3, **plan), out=None)
    assert result.last("active")["accuracy"] > 0.5
