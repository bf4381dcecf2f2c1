"""Partitions: every sample to exactly one client, always ending; and the held-out parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import UsageError
from fedstill.core.value import build_named, plain
from fedstill.data import (
    IID,
    Dirichlet,
    Dominant,
    EqualSize,
    Partition,
    Quantity,
    Rebalanced,
    Shards,
    Split,
    local_split,
    matching_test,
    partitions,
    public_split,
)
from fedstill.data.margins import scaled
from fedstill.data.partition import _mend, _whole

quick = settings(deadline=None, max_examples=60, derandomize=True)
alphas = st.one_of(st.sampled_from([1e-3, 1e6]), st.floats(1e-3, 1e6), st.floats(-3, 2).map(lambda e: 10.0**e))
skewed = st.sampled_from([Dirichlet, Dominant, Quantity])


@st.composite
def problems(draw):
    """Labels with gaps and unequal classes, and no more clients than samples."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(sum))
    labels = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.repeat(np.arange(len(sizes)) * 2, sizes))
    return labels, draw(st.integers(1, min(len(labels), 40))), draw(st.integers(0, 2**32))


def assert_partition(split: Split, labels: np.ndarray, clients: int) -> None:
    assert len(split.parts) == clients
    assert np.array_equal(np.sort(np.concatenate(split.parts)), np.arange(len(labels)))
    assert all((np.diff(part) > 0).all() for part in split.parts)


@quick
@given(problems(), skewed, alphas, st.integers(1, 15))
def test_skewed_partitions_lose_nothing_and_feed_everyone(problem, kind, alpha, least):
    labels, clients, seed = problem
    split = kind(alpha, least).split(labels, clients, np.random.default_rng(seed))
    assert_partition(split, labels, clients)
    possible = min(least, len(labels) // clients)
    assert min(map(len, split.parts)) >= possible
    assert any("min_samples lowered" in note for note in split.notes) == (possible < least)


@quick
@given(problems())
def test_iid_deals_evenly(problem):
    labels, clients, seed = problem
    split = IID().split(labels, clients, np.random.default_rng(seed))
    assert_partition(split, labels, clients)
    assert np.ptp([len(part) for part in split.parts]) <= 1


@quick
@given(problems(), st.integers(1, 12))
def test_shards_lose_nothing(problem, wanted):
    labels, clients, seed = problem
    present = len(np.unique(labels))
    shards = Shards(min(wanted, present))
    split = shards.split(labels, clients, np.random.default_rng(seed))
    assert_partition(split, labels, clients)
    assert min(map(len, split.parts)) >= 1


@quick
@given(problems(), st.sampled_from([Dirichlet(0.1), Dominant(0.1), Quantity(0.1), IID(), Shards(1)]))
def test_the_same_generator_gives_the_same_split(problem, partition):
    labels, clients, seed = problem
    one, two = (partition.split(labels, clients, np.random.default_rng(seed)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.parts, two.parts, strict=True))
    assert one.notes == two.notes


@pytest.mark.parametrize("partition", [Dirichlet(), Dominant(), Quantity(), IID(), Shards()])
def test_another_seed_gives_another_split(partition):
    labels = np.repeat(np.arange(10), 50)
    one, two = (partition.split(labels, 5, np.random.default_rng(seed)) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one.parts, two.parts, strict=True))


def test_every_registered_partition_goes_through_a_config_file():
    by_chance = {"dirichlet", "dominant", "rebalanced", "equal-size", "iid", "shards", "quantity"}
    by_word = {"sites": {}, "given": {"parts": [[0, 1], [2]]}, "saved": {"path": "split.json"}}
    assert set(partitions) == by_chance | set(by_word)
    for name in partitions:
        value = build_named(Partition, {"name": name, **by_word.get(name, {})})
        assert build_named(Partition, plain(value)) == value
    assert build_named(Partition, {"name": "dirichlet", "alpha": "0.05"}) == Dirichlet(alpha=0.05)


@pytest.mark.parametrize("kind", [Dirichlet, Dominant, Quantity])
def test_alpha_must_be_positive_and_finite(kind):
    for alpha, line in [(0, "alpha = 0: must be > 0"), (-1, "alpha = -1: must be > 0")]:
        with pytest.raises(UsageError) as error:
            kind(alpha=alpha)
        assert str(error.value) == line
    with pytest.raises(UsageError, match="alpha = inf: must be < inf"):
        kind(alpha=float("inf"))
    with pytest.raises(UsageError, match="min_samples = 0: must be ≥ 1"):
        kind(min_samples=0)


@pytest.mark.parametrize("partition", [Dirichlet(), Dominant(), Quantity(), IID(), Shards(1)])
def test_fewer_samples_than_clients_is_told(partition):
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError) as error:
        partition.split(np.array([0, 1, 1]), 5, rng)
    assert str(error.value) == "3 samples for 5 clients: every client needs at least one"
    with pytest.raises(UsageError, match="clients = 0: must be ≥ 1"):
        partition.split(np.array([0, 1, 1]), 0, rng)


def test_a_minimum_that_cannot_be_is_lowered_and_said():
    split = Dirichlet(1.0, min_samples=10).split(np.repeat([0, 1], 20), 8, np.random.default_rng(0))
    assert split.notes[0] == "min_samples lowered from 10 to 5: 40 samples for 8 clients"
    assert [len(part) for part in split.parts] == [5] * 8


def test_repair_is_said():
    """Two classes at α → 0 feed two clients of ten; the other eight get their minimum from the richer of the two."""
    split = Dirichlet(1e-12).split(np.repeat([0, 1], 500), 10, np.random.default_rng(0))
    assert split.notes == (
        "none of 100 draws fed every client: 8 of 10 clients had fewer than 10 samples, moved 80 from the richest",
    )
    assert sorted(len(part) for part in split.parts) == [10] * 8 + [460, 460]


def test_repair_takes_the_largest_class_of_the_richest():
    """Clients hold (6+2, 3, 0); the third needs 2, the richest gives them from its class of 6."""
    counts, notes = _mend(np.array([[6, 0, 0], [2, 3, 0]]), 2, "why")
    assert counts.tolist() == [[4, 0, 2], [2, 3, 0]]
    assert notes == ("why: 1 of 3 clients had fewer than 2 samples, moved 2 from the richest",)


def test_alpha_sets_the_skew():
    """At α = 10⁶ all clients hold as much of each class, 100/4 ± 1; at α = 10⁻³ a class has about one holder."""
    labels = np.repeat(np.arange(10), 100)
    even = Dirichlet(1e6).split(labels, 4, np.random.default_rng(0)).counts(labels, 10)
    assert abs(even - 25).max() <= 1
    skewed = Dirichlet(1e-3, min_samples=1).split(labels, 4, np.random.default_rng(0)).counts(labels, 10)
    assert (skewed.max(axis=0) >= 97).all()


def test_shares_become_whole_numbers_without_bias():
    """5 samples shared evenly by 20 clients: everyone gets 0 or 1, and each client 1/4 in the mean."""
    rng = np.random.default_rng(0)
    drawn = np.concatenate([_whole(np.full((1, 20), 0.05), np.array([5]), rng) for _ in range(4000)])
    assert set(np.unique(drawn)) == {0, 1}
    assert (drawn.sum(axis=1) == 5).all()
    assert abs(drawn.mean(axis=0) - 0.25).max() < 0.03


def test_dominant_clients_take_turns():
    """20 clients, 10 classes: two groups of ten, each with half of every class; within a group every client dominates
    exactly one class, so that none starves even at α = .001."""
    labels = np.repeat(np.arange(10), 200)
    split = Dominant(1e-3).split(labels, 20, np.random.default_rng(0))
    counts = split.counts(labels, 10)
    assert split.notes == ()
    for group in (counts[:10], counts[10:]):
        assert group.sum(axis=0).tolist() == [100] * 10
        assert sorted(group.argmax(axis=0)) == list(range(10))


def test_dominant_passes_start_anew():
    """4 clients, 10 classes: classes 0–3 and 4–7 have four different largest holders each, 8 and 9 two."""
    labels = np.repeat(np.arange(10), 1000)
    largest = Dominant(0.3).split(labels, 4, np.random.default_rng(5)).counts(labels, 10).argmax(axis=0)
    assert sorted(largest[:4]) == sorted(largest[4:8]) == [0, 1, 2, 3]
    assert largest[8] != largest[9]


def test_the_exchange_equals_the_authors_redraw():
    """Of two clients the free one must get the larger share: the mean of max(p, 1−p), p ~ U(0, 1), is 3/4.

    Two classes, two clients, α = 1: class 0's largest holder is either client, class 1's is the other.
    """
    rng = np.random.default_rng(0)
    drawn = np.stack([Dominant(1.0)._shares(2, 2, rng) for _ in range(4000)])
    first = drawn[:, 0].argmax(axis=1)
    assert (drawn[:, 1].argmax(axis=1) == 1 - first).all()
    assert abs(first.mean() - 0.5) < 0.03
    assert abs(drawn[:, 1].max(axis=1).mean() - 0.75) < 0.01
    assert np.allclose(drawn.sum(axis=2), 1)


def test_shards_hold_their_number_of_classes():
    """10 clients × 2 classes of 10: every class has two holders with half of it."""
    labels = np.repeat(np.arange(10), 50)
    counts = Shards(2).split(labels, 10, np.random.default_rng(0)).counts(labels, 10)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 2).all()
    assert counts.max() == 25


def test_shards_with_too_few_or_too_many_classes():
    labels = np.repeat(np.arange(10), 50)
    split = Shards(2).split(labels, 3, np.random.default_rng(0))
    assert split.notes == ("3 clients of 2 classes cannot hold all 10 classes: some hold more",)
    assert sorted((split.counts(labels, 10) > 0).sum(axis=1)) == [3, 3, 4]
    with pytest.raises(UsageError) as error:
        Shards(11).split(labels, 3, np.random.default_rng(0))
    assert str(error.value) == "classes_per_client = 11: must be ≤ 10, the classes in the data"


def test_shards_feed_a_client_whose_class_was_too_small():
    labels = np.repeat([0, 1], [9, 1])
    split = Shards(1).split(labels, 4, np.random.default_rng(0))
    assert min(map(len, split.parts)) == 1
    assert split.notes == (
        "its classes were too small to share: 1 of 4 clients had fewer than 1 samples, moved 1 from the richest",
    )


def test_quantity_skews_sizes_not_labels():
    labels = np.repeat([0, 1], 5000)
    counts = Quantity(0.5).split(labels, 5, np.random.default_rng(3)).counts(labels, 2)
    sizes = counts.sum(axis=1)
    assert sizes.max() > 3 * sizes.min()
    large = counts[sizes > 500]
    assert abs(large[:, 0] / large.sum(axis=1) - 0.5).max() < 0.07


def test_split_counts():
    split = Split((np.array([0, 3]), np.array([1, 2])))
    assert split.counts(np.array([0, 2, 2, 1]), 4).tolist() == [[1, 1, 0, 0], [0, 0, 2, 0]]


@quick
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.floats(0.05, 0.95), st.integers(0, 99))
def test_local_split_cuts_every_part_in_two(sizes, share, seed):
    ends = np.cumsum(sizes)
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    train, test = local_split(parts, np.random.default_rng(seed), share)
    for part, fit, held in zip(parts, train, test, strict=True):
        assert np.array_equal(np.sort(np.concatenate([fit, held])), part)
        assert len(fit) >= min(1, len(part))
        assert len(held) >= (len(part) > 1)


def test_local_split_is_80_to_20():
    """20 % of 100, 11, 2, 1, 0 samples: 20, 2 (2.2), 1 (at least one), none of one, none of none."""
    parts = [np.arange(n) for n in (100, 11, 2, 1, 0)]
    train, test = local_split(parts, np.random.default_rng(0))
    assert [len(t) for t in test] == [20, 2, 1, 0, 0]
    assert [len(t) for t in train] == [80, 9, 1, 1, 0]
    again, _ = local_split(parts, np.random.default_rng(0))
    assert np.array_equal(train[0], again[0])
    assert train[0].tolist() != list(range(80))


def test_public_split_takes_its_share_of_every_class():
    """10 % of 100, 30, 4 and 1: 10, 3, at least 1, and the single sample stays private."""
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 5, 6], [100, 30, 4, 1]))
    public, rest = public_split(labels, np.random.default_rng(1))
    assert np.bincount(labels[public], minlength=7).tolist() == [10, 3, 0, 0, 0, 1, 0]
    assert np.array_equal(np.sort(np.concatenate([public, rest])), np.arange(135))


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_lies_between_0_and_1(share):
    with pytest.raises(UsageError, match=r"share = .*: must be > 0 and < 1"):
        public_split(np.array([0, 1]), np.random.default_rng(0), share)
    with pytest.raises(UsageError, match=r"share = .*: must be > 0 and < 1"):
        local_split([np.array([0, 1])], np.random.default_rng(0), share)


def test_matching_tests_mix_as_the_clients_do():
    """80 training, 40 test samples. Client 0 (20: 10 + 10) gets 10 tests, 5 + 5; client 1 (60: 0 + 60) would get 30,
    but the test set has 20 of its one class."""
    labels = np.repeat([0, 1], 20)
    tests = matching_test(np.array([[10, 10], [0, 60]]), labels, np.random.default_rng(0))
    mixes = [np.bincount(labels[t], minlength=2).tolist() for t in tests]
    assert mixes == [[5, 5], [0, 20]]
    assert all(len(set(t)) == len(t) for t in tests)


def test_matching_tests_of_a_given_size_and_at_least_one():
    """10 tests over 999 : 1 training samples: 9.99 and .01, rounded to 10 and raised to 1."""
    labels = np.repeat([0, 1], 50)
    tests = matching_test(np.array([[999, 0], [0, 1]]), labels, np.random.default_rng(0), size=10)
    assert [len(t) for t in tests] == [10, 1]


def test_matching_tests_leave_out_what_the_test_set_lacks():
    tests = matching_test(np.array([[5, 5, 0], [0, 0, 9], [0, 0, 0]]), np.array([0, 0, 1, 1]), np.random.default_rng(0))
    assert len(tests[0]) == 2
    assert tests[1].tolist() == tests[2].tolist() == []


@quick
@given(st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(0, 99))
def test_matching_tests_never_repeat_within_a_client(counts, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 50)
    for mix, test in zip(counts, matching_test(np.array(counts), labels, rng), strict=True):
        assert len(np.unique(test)) == len(test)
        assert set(labels[test]) <= set(np.flatnonzero(mix))
        assert len(test) >= (sum(mix) > 0)


@quick
@given(problems(), alphas)
def test_rebalanced_loses_nothing_and_fills_nobody_twice(problem, alpha):
    """A client gets nothing of a class once it has N/K: without its last class it has less than that."""
    labels, clients, seed = problem
    split = Rebalanced(alpha, 1).split(labels, clients, np.random.default_rng(seed))
    assert_partition(split, labels, clients)
    if split.notes:  # samples were moved afterwards
        return
    for row in split.counts(labels, labels.max() + 1):
        last = np.flatnonzero(row)[-1]
        assert row[:last].sum() < len(labels) / clients


def test_rebalanced_sizes_are_nearer_to_one_another_than_dirichlets():
    labels = np.repeat(np.arange(10), 1000)
    spread = [
        np.mean([np.std([len(part) for part in kind(0.5, 10).split(labels, 20, rng).parts]) for _ in range(10)])
        for kind, rng in ((Dirichlet, np.random.default_rng(0)), (Rebalanced, np.random.default_rng(0)))
    ]
    assert spread[1] < 0.8 * spread[0]


def test_rebalanced_by_hand():
    """Two clients, two classes of 4 samples, N/K = 4. α → 0: the first class goes to one client, who then is full."""
    labels = np.repeat([0, 1], 4)
    for seed in range(10):
        split = Rebalanced(1e-3, 1).split(labels, 2, np.random.default_rng(seed))
        assert sorted(split.counts(labels, 2).tolist()) == [[0, 4], [4, 0]]


@quick
@given(problems(), alphas)
def test_equal_size_gives_everyone_as_many(problem, alpha):
    labels, clients, seed = problem
    split = EqualSize(alpha).split(labels, clients, np.random.default_rng(seed))
    assert_partition(split, labels, clients)
    sizes = [len(part) for part in split.parts]
    assert max(sizes) - min(sizes) <= 1


def test_equal_size_keeps_the_skew():
    """10 classes of 100 over 10 clients: with a large α every client has 10 of each, with a small one few classes."""
    labels = np.repeat(np.arange(10), 100)
    even = EqualSize(1e6).split(labels, 10, np.random.default_rng(0)).counts(labels, 10)
    assert np.abs(even - 10).max() <= 1
    skewed_counts = EqualSize(0.03).split(labels, 10, np.random.default_rng(0)).counts(labels, 10)
    assert (skewed_counts > 20).sum(axis=1).max() <= 4
    assert skewed_counts.sum(axis=1).tolist() == [100] * 10


def test_scaling_by_hand():
    """[[1, 1], [1, 3]] keeps its odds ratio 3 when rows and columns are scaled to 2, 2 and 1, 3.

    With x top left: x (x + 1) / ((2 − x)(1 − x)) = 3, so 2x² − 10x + 6 = 0 and x = (5 − √13)/2 = .6972.
    """
    found = scaled(np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([2, 2]), np.array([1, 3]))
    x = (5 - np.sqrt(13)) / 2
    assert found == pytest.approx(np.array([[x, 2 - x], [1 - x, 1 + x]]), abs=1e-5)
