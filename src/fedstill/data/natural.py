"""Partitions that are not drawn: sites as they are, indices that somebody gives, and a partition that was saved."""

import json
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError
from fedstill.core.value import setting
from fedstill.data.partition import Partition, Split, partitions
from fedstill.data.portions import Ints, Portions
from fedstill.data.samples import Dataset, Sites


@dataclass(frozen=True)
class Natural(Partition, ABC):
    """A partition that knows its clients from the data or from a file, not from labels and chance (abstract)."""

    def split(self, labels: NDArray[np.integer], clients: int, rng: np.random.Generator) -> Split:
        """Refused: labels alone do not say whose samples they are."""
        raise UsageError("partition: these clients are found in the data, labels alone do not tell them")


@partitions.register("sites")
@dataclass(frozen=True)
class BySite(Natural):
    """Every site is a client, with the samples it has; its part of the global test set, where it has one, tests it."""

    min_samples: int = setting(2, ge=1, doc="a site with fewer training samples is small")
    small: Literal["refuse", "merge", "drop"] = setting(
        "refuse", doc="what becomes of small sites: refuse to run, merge them with each other, or drop them"
    )

    def clients(self, dataset: Dataset) -> int:
        """As many as there are sites after small ones were merged or dropped."""
        return len(self._groups(_sites(dataset))[0])

    def deal(self, dataset: Dataset, private: Ints, clients: int, rng: np.random.Generator) -> Split:
        """Each site's own samples; clients stand in the order of the sites' names."""
        sites = _sites(dataset)
        groups, notes = self._groups(sites)
        if clients != len(groups):
            raise UsageError(f"clients = {clients}: the data have {len(groups)} sites; leave clients out")
        owner = _owner(groups, len(sites.names))
        dealt = Portions.by_owner(owner[sites.train[private]], len(groups))
        empty = np.flatnonzero(dealt.sizes == 0)
        if len(empty):
            raise UsageError(f"partition = sites: {_title(sites, groups[empty[0]])} has no samples left to train on")
        tests = None if sites.test is None else Portions.by_owner(owner[sites.test], len(groups))
        parts = Portions(private[dealt.flat], dealt.sizes)
        return Split(parts, notes, tuple(_title(sites, group) for group in groups), tests)

    def _groups(self, sites: Sites) -> tuple[list[list[int]], tuple[str, ...]]:
        """The sites of each client (several where small ones are merged), and what the user should know."""
        sizes = np.bincount(sites.train, minlength=len(sites.names))
        there = np.flatnonzero(sizes).tolist()
        few = [site for site in there if sizes[site] < self.min_samples]
        if not few:
            return [[site] for site in there], ()
        examples = ", ".join(f"{sites.names[site]}: {sizes[site]}" for site in few[:5])
        if self.small == "refuse":
            raise UsageError(
                f"partition = sites: {len(few)} of {len(there)} sites have fewer than {self.min_samples} samples "
                f"({examples}); ask for --partition sites --set partition.small=merge (or drop, or "
                "partition.min_samples=1)"
            )
        large = [[site] for site in there if site not in few]
        if self.small == "drop":
            if len(large) < 1:
                raise UsageError(f"partition = sites: every site has fewer than {self.min_samples} samples")
            return large, (f"{len(few)} small sites dropped ({examples})",)
        merged = _merged(few, sizes, self.min_samples)
        if large and len(merged) == 1 and sizes[merged[0]].sum() < self.min_samples:  # too few even together
            host = min(large, key=lambda group: int(sizes[group[0]]))
            host += merged[0]
            return large, (f"{len(few)} small sites merged with {sites.names[host[0]]} ({examples})",)
        return sorted(large + merged), (f"{len(few)} small sites merged into {len(merged)} ({examples})",)


def _sites(dataset: Dataset) -> Sites:
    if dataset.sites is None:
        raise UsageError(f"partition = sites: {dataset.name} does not say which site a sample is from (site = …)")
    return dataset.sites


def _merged(few: Sequence[int], sizes: NDArray[Any], least: int) -> list[list[int]]:
    """Small sites side by side until they are large enough; what remains joins the last.

    >>> _merged([0, 1, 2, 3], np.array([2, 2, 2, 1]), 4)
    [[0, 1], [2, 3]]
    """
    groups: list[list[int]] = [[]]
    for site in few:
        if sum(sizes[s] for s in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(site)
    if len(groups) > 1 and sum(sizes[s] for s in groups[-1]) < least - 1:
        groups[-2] += groups.pop()
    return groups


def _owner(groups: Sequence[Sequence[int]], sites: int) -> Ints:
    """The client of every site; −1 for one that was dropped."""
    owner = np.full(sites, -1, np.int64)
    for client, group in enumerate(groups):
        owner[list(group)] = client
    return owner


def _title(sites: Sites, group: Sequence[int]) -> str:
    names = [sites.names[site] for site in group]
    return " + ".join(names[:3]) + (f" + {len(names) - 3} more" if len(names) > 3 else "")


@partitions.register("given")
@dataclass(frozen=True)
class Given(Natural):
    """Every client's training samples by their numbers: `Given(parts=((0, 1, 4), (2, 3)))`."""

    parts: tuple[tuple[int, ...], ...] = setting((), doc="the numbers of each client's training samples, from 0")

    def clients(self, dataset: Dataset) -> int:
        """As many as there are parts."""
        return len(self.parts)

    def deal(self, dataset: Dataset, private: Ints, clients: int, rng: np.random.Generator) -> Split:
        """The samples named, without those that became public."""
        return _dealt(self.parts, dataset, private, "partition.parts")


@partitions.register("saved")
@dataclass(frozen=True)
class Saved(Natural):
    """A partition that a run wrote (`split.json` in its folder), or anybody: {"parts": [[0, 1, 4], [2, 3]]}."""

    path: str = setting("split.json", doc="the file")

    def clients(self, dataset: Dataset) -> int:
        """As many as there are parts."""
        return len(self._read())

    def deal(self, dataset: Dataset, private: Ints, clients: int, rng: np.random.Generator) -> Split:
        """The samples named in the file, without those that became public."""
        return _dealt(self._read(), dataset, private, self.path)

    def _read(self) -> list[list[int]]:
        try:
            parts = json.loads(Path(self.path).read_text())["parts"]
            return [[int(i) for i in part] for part in parts]
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f'{self.path}: must be {{"parts": [[0, 1], [2]]}} ({error})') from None


def _dealt(parts: Sequence[Sequence[int]], dataset: Dataset, private: Ints, where: str) -> Split:
    size, clients = len(dataset.train), [np.unique(np.array(part, np.int64)) for part in parts]
    if not clients or any(not len(part) for part in clients):
        raise UsageError(f"{where}: every client needs at least one sample")
    every = np.concatenate(clients)
    if every.min() < 0 or every.max() >= size:
        odd = int(every.min() if every.min() < 0 else every.max())
        raise UsageError(f"{where}: sample {odd}; {dataset.name} has samples 0 to {size - 1}")
    values, counts = np.unique(every, return_counts=True)
    if (counts > 1).any():
        raise UsageError(f"{where}: sample {values[counts > 1][0]} is given to several clients")
    left = size - len(every)
    notes = (f"{left:,} of {size:,} samples are given to nobody",) if left else ()
    left_to = tuple(np.intersect1d(part, private) for part in clients)
    if bare := [k for k, part in enumerate(left_to) if not len(part)]:
        raise UsageError(f"{where}: client {bare[0]} has no samples left to train on, all became public")
    return Split(left_to, notes)
