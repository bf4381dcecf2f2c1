"""Who gets which samples: partitions of one data set over clients, and the parts held out from them.

A partition is a value; all of them end, give every sample to exactly one client, and say in `notes` what they had to
bend. A class nobody has a sample of is no obstacle.

    >>> labels = np.repeat([0, 1], 50)
    >>> split = Dirichlet(alpha=0.5, min_samples=5).split(labels, 4, np.random.default_rng(0))
    >>> sum(len(part) for part in split.parts), split.counts(labels, 2).sum(axis=0).tolist()
    (100, [50, 50])
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import UsageError
from fedstill.core.registry import Registry
from fedstill.core.value import Value, setting
from fedstill.data.margins import rounded, scaled
from fedstill.data.portions import Ints, Portions
from fedstill.data.samples import Dataset

DRAWS = 100


@dataclass(frozen=True, eq=False)
class Split:
    """Each client's sample indices (ascending), and what the user should know of how they came about."""

    parts: Sequence[Ints]
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """The clients' names, where they have any."""
    tests: Sequence[Ints] | None = None
    """Each client's own part of the global test set, where clients have one (empty for those that have none)."""

    def counts(self, labels: NDArray[np.integer], classes: int) -> Ints:
        """How many samples of each class each client holds: clients × classes."""
        return Portions.of(self.parts).counts(labels, classes)


@dataclass(frozen=True)
class Partition(Value, ABC):
    """How samples are divided over clients."""

    @abstractmethod
    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """Give each of the samples, known by their `labels`, to one of `clients` clients; `rng` has all draws."""

    def deal(self, dataset: Dataset, private: Ints, clients: int, rng: np.random.Generator) -> Split:
        """Give each of the training samples at `private` to one of the clients."""
        split = self.split(dataset.train.y.numpy()[private], clients, rng)
        parts = Portions.of(split.parts)
        return replace(split, parts=Portions(private[parts.flat], parts.sizes))

    def clients(self, dataset: Dataset) -> int | None:
        """How many clients these data make, where that is not for the user to say."""
        return None


partitions: Registry[Partition] = Registry("partition", Partition)


@dataclass(frozen=True)
class LabelSkew(Partition, ABC):
    """Base of the partitions that divide each class over the clients by draws from Dir(α)."""

    alpha: float = setting(0.1, gt=0, lt=math.inf, doc="Dirichlet's α: the smaller, the fewer classes a client sees")
    min_samples: int = setting(10, ge=1, doc="samples every client gets at least")

    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """Redraw all classes, at most 100 times, until every client has `min_samples`; then mend the best draw."""
        classes, sizes = _classes(labels)
        least, lowered = _least(len(labels), clients, self.min_samples)
        counts, mended = _feed(lambda: self.draw(sizes, clients, rng), least)
        return Split(_deal(classes, counts, rng), lowered + mended)

    @abstractmethod
    def draw(self, sizes: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """One draw: how many samples of each class (of these sizes) each client gets, classes × clients."""


@partitions.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(LabelSkew):
    """Label skew: each class is divided over the clients in proportions drawn from Dir(α)."""

    def draw(self, sizes: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Every class by proportions of its own."""
        return _whole(rng.dirichlet(np.full(clients, self.alpha), size=len(sizes)), sizes, rng)


@partitions.register("dominant")
@dataclass(frozen=True)
class Dominant(LabelSkew):
    """FedKF's authors' Dirichlet: every client of a group is the largest holder of some class before any is of two.

    Clients stand in groups of at most the number of classes, each with its share of every class. Per class the authors
    redraw Dir(α) until its largest holder is a client that does not dominate yet in this pass. Dir(α) is symmetric, so
    exchanging the largest share with that of a random such client has the very same distribution, and always ends.
    """

    def draw(self, sizes: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Every group's share of each class, and who in the group has how much of it."""
        groups = [np.arange(first, min(first + len(sizes), clients)) for first in range(0, clients, len(sizes))]
        share = np.array([len(group) / clients for group in groups])
        counts = np.zeros((len(sizes), clients), np.int64)
        by_group = _whole(np.tile(share, (len(sizes), 1)), sizes, rng)
        for group, own in zip(groups, by_group.T, strict=True):
            counts[:, group] = _whole(self._shares(len(sizes), len(group), rng), own, rng)
        return counts

    def _shares(self, classes: int, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        shares = rng.dirichlet(np.full(clients, self.alpha), size=classes)
        free: list[int] = []
        for row in shares:
            free = free or list(range(clients))  # a new pass once everyone dominates a class
            largest = int(row.argmax())
            if largest not in free:
                other = free[rng.integers(len(free))]
                row[[largest, other]] = row[[other, largest]]
                largest = other
            free.remove(largest)
        return shares


@partitions.register("rebalanced")
@dataclass(frozen=True)
class Rebalanced(LabelSkew):
    """DaFKD's Dirichlet, from FedGen's code: class by class, a client that has N/K samples gets nothing of the next.

    Sizes are nearer to one another than with `dirichlet`, since only the class that fills a client can overflow it.
    """

    min_samples: int = setting(100, ge=1, doc="samples every client gets at least")

    def draw(self, sizes: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Class by class; whoever has enough is left out."""
        counts = np.zeros((len(sizes), clients), np.int64)
        for number, size in enumerate(sizes):
            hungry = counts.sum(axis=0) < sizes.sum() / clients
            shares = np.where(hungry, rng.dirichlet(np.full(clients, self.alpha)), 0.0)
            shares = shares if shares.sum() > 0 else hungry.astype(float)  # all the mass was drawn for full clients
            counts[number] = _whole((shares / shares.sum())[None], np.array([size]), rng)[0]
        return counts


@partitions.register("equal-size")
@dataclass(frozen=True)
class EqualSize(Partition):
    """FedRAD's sources: every client draws its mix of classes from Dir(α), and all have as many samples (±1).

    The drawn mixes (clients × classes) are scaled in rows and columns in turn (Sinkhorn) until every client has N/K
    samples and every class is used up; then they are rounded so that both stay true.
    """

    alpha: float = setting(0.1, gt=0, lt=math.inf, doc="Dirichlet's α: the smaller, the fewer classes a client sees")

    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """Draw, scale, round and deal."""
        classes, sizes = _classes(labels)
        _least(len(labels), clients, 1)
        mixes = rng.dirichlet(np.full(len(sizes), self.alpha), size=clients)
        rows = np.bincount(np.arange(len(labels)) % clients, minlength=clients)
        return Split(_deal(classes, rounded(scaled(mixes, rows, sizes), rows, sizes).T, rng))


@partitions.register("iid")
@dataclass(frozen=True)
class IID(Partition):
    """No skew: samples are dealt out at random, as many to each client (±1)."""

    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """Shuffle and deal."""
        _least(len(labels), clients, 1)
        return Split(Portions.by_owner(rng.permutation(np.arange(len(labels)) % clients), clients))


@partitions.register("shards")
@dataclass(frozen=True)
class Shards(Partition):
    """Label skew by number: each client holds `classes_per_client` classes; a class is cut evenly for its holders."""

    classes_per_client: int = setting(2, ge=1, doc="classes each client holds")

    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """Every client takes the classes with fewest holders so far, ties at random."""
        classes, sizes = _classes(labels)
        _least(len(labels), clients, 1)
        wanted = self.classes_per_client
        if wanted > len(sizes):
            raise UsageError(f"classes_per_client = {wanted}: must be ≤ {len(sizes)}, the classes in the data")
        holds = np.zeros((len(sizes), clients))
        for client in range(clients):
            holds[np.lexsort((rng.random(len(sizes)), holds.sum(axis=1)))[:wanted], client] = 1
        notes: tuple[str, ...] = ()
        orphans = np.flatnonzero(holds.sum(axis=1) == 0)
        if len(orphans):
            notes = (f"{clients} clients of {wanted} classes cannot hold all {len(sizes)} classes: some hold more",)
        for orphan in orphans:  # no sample is lost: the clients with fewest classes take one more
            holds[orphan, np.lexsort((rng.random(clients), holds.sum(axis=0)))[0]] = 1
        counts = _whole(holds / holds.sum(axis=1, keepdims=True), sizes, rng)
        counts, mended = _mend(counts, 1, "its classes were too small to share")
        return Split(_deal(classes, counts, rng), notes + mended)


@partitions.register("quantity")
@dataclass(frozen=True)
class Quantity(Partition):
    """Quantity skew: clients' sizes are drawn from Dir(α), their labels are IID."""

    alpha: float = setting(0.5, gt=0, lt=math.inf, doc="concentration: the smaller, the more unequal the sizes")
    min_samples: int = setting(10, ge=1, doc="samples every client gets at least")

    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """A label-blind Dirichlet: all samples count as one class."""
        return Dirichlet(self.alpha, self.min_samples).split(np.zeros(len(labels), np.int64), clients, rng)


def _classes(labels: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Labels renumbered over the classes that have samples, and the sizes of these."""
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return classes, sizes


def _least(samples: int, clients: int, wanted: int) -> tuple[int, tuple[str, ...]]:
    """How many samples every client can have at least, and a note where that is less than wanted."""
    if clients < 1:
        raise UsageError(f"clients = {clients}: must be ≥ 1")
    if samples < clients:
        raise UsageError(f"{samples} samples for {clients} clients: every client needs at least one")
    least = min(wanted, samples // clients)
    lowered = f"min_samples lowered from {wanted} to {least}: {samples} samples for {clients} clients"
    return least, (lowered,) if least < wanted else ()


def _whole(shares: NDArray[np.float64], sizes: Ints, rng: np.random.Generator) -> Ints:
    """Whole numbers of samples from shares, one row a class: each is its exact share rounded up or down.

    Which way is drawn (systematic sampling) so that the expectation is exact: a class of 5 samples shared evenly by 20
    clients goes to others each time, not always to the same five.
    """
    edges = np.floor(np.cumsum(shares, axis=1) * sizes[:, None] + rng.random((len(sizes), 1))).astype(np.int64)
    edges = np.minimum(edges, sizes[:, None])
    edges[:, -1] = sizes
    return np.diff(edges, axis=1, prepend=0)


def _feed(draw: Callable[[], Ints], least: int) -> tuple[Ints, tuple[str, ...]]:
    """Draw (classes × clients) until every client has `least` samples; after 100 draws mend the one nearest to it."""

    def lacks(counts: Ints) -> int:
        return int(np.maximum(least - counts.sum(axis=0), 0).sum())

    best = draw()
    for _ in range(DRAWS - 1):
        if not lacks(best):
            break
        best = min(best, draw(), key=lacks)
    return _mend(best, least, f"none of {DRAWS} draws fed every client")


def _mend(counts: Ints, least: int, why: str) -> tuple[Ints, tuple[str, ...]]:
    """Move samples to clients with fewer than `least`, from the richest client's largest class each time."""
    counts, moved = counts.copy(), 0
    totals = counts.sum(axis=0)
    poor = np.flatnonzero(totals < least)
    for client in poor:
        while totals[client] < least:
            richest = totals.argmax()
            largest = counts[:, richest].argmax()
            step = min(least - totals[client], totals[richest] - least, counts[largest, richest])
            counts[largest, [richest, client]] += (-step, step)
            totals[[richest, client]] += (-step, step)
            moved += int(step)
    note = f"{why}: {len(poor)} of {len(totals)} clients had fewer than {least} samples, moved {moved} from the richest"
    return counts, (note,) if moved else ()


def _deal(classes: Ints, counts: Ints, rng: np.random.Generator) -> Portions:
    """Give each client its number of each class (counts: classes × clients), which samples being drawn at random."""
    owner = np.empty(len(classes), np.int64)
    for number, row in enumerate(counts):
        owner[rng.permutation(np.flatnonzero(classes == number))] = np.repeat(np.arange(len(row)), row)
    return Portions.by_owner(owner, counts.shape[1])


def local_split(parts: Sequence[Ints], rng: np.random.Generator, share: float = 0.2) -> tuple[Portions, Portions]:
    """Each client's part cut at random into local train and local test, which gets `share` (FedKF: 20 %).

    The test gets at least one sample, and so does the train part: a client with one sample has no test.

        >>> train, test = local_split([np.arange(10), np.array([7])], np.random.default_rng(0))
        >>> [len(t) for t in train], [len(t) for t in test]
        ([8, 1], [2, 0])
    """
    _check_share(share)
    whole = Portions.of(parts)
    sizes = np.clip(np.rint(share * whole.sizes).astype(np.int64), 1, np.maximum(0, whole.sizes - 1))
    tested = np.zeros(len(whole.flat), bool)
    for start, among, size in zip(whole.edges.tolist(), whole.sizes.tolist(), sizes.tolist(), strict=False):
        tested[start + rng.permutation(among)[:size]] = True
    return Portions(whole.flat[~tested], whole.sizes - sizes), Portions(whole.flat[tested], sizes)


def public_split(labels: NDArray[np.integer], rng: np.random.Generator, share: float = 0.1) -> tuple[Ints, Ints]:
    """Indices of a public set with `share` of every class (at least one of two), and those of the private rest.

    >>> public, rest = public_split(np.repeat([0, 1], 20), np.random.default_rng(0))
    >>> len(public), len(rest)
    (4, 36)
    """
    _check_share(share)
    is_public = np.zeros(len(labels), bool)
    for number in np.unique(labels):
        own = np.flatnonzero(labels == number)
        size = min(max(1, round(share * len(own))), len(own) - 1)
        is_public[rng.choice(own, size, replace=False)] = True
    return np.flatnonzero(is_public), np.flatnonzero(~is_public)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(f"share = {share}: must be > 0 and < 1")


def matching_test(
    counts: Ints, test_labels: NDArray[np.integer], rng: np.random.Generator, size: int | None = None
) -> Portions:
    """Local tests from the global test set: for each client, indices whose labels mix as its training samples do.

    `counts` is clients × classes (`Split.counts`). `size` samples (default: as many as the test set has) are divided in
    proportion to clients' training samples. Nothing repeats within a client; clients may share samples. Where the test
    set has too few of a class, the client's test shrinks and its mix stays; a class without test samples is left out.

        >>> matching_test(np.array([[9, 0], [5, 5]]), np.array([0, 0, 1, 1]), np.random.default_rng(0))[0].tolist()
        [0, 1]
    """
    size = len(test_labels) if size is None else size
    numbers = size * counts.sum(axis=1) / max(1, counts.sum())
    pools = [np.flatnonzero(test_labels == number) for number in range(counts.shape[1])]
    return Portions.of([_own_test(mix, number, pools, rng) for mix, number in zip(counts, numbers, strict=True)])


def _own_test(mix: Ints, number: float, pools: Sequence[Ints], rng: np.random.Generator) -> Ints:
    there = np.array([len(pool) for pool in pools])
    mix = np.where(there > 0, mix, 0)
    if not mix.sum():
        return np.empty(0, np.int64)
    share = mix / mix.sum()
    holds = math.floor((there[mix > 0] / share[mix > 0]).min() + 1e-9)  # samples of this mix that the test set has
    wanted = max(1, min(round(number), holds))
    take = np.minimum(_whole(share[None], np.array([wanted]), rng)[0], there)
    return np.sort(np.concatenate([rng.choice(pool, k, replace=False) for pool, k in zip(pools, take, strict=True)]))
