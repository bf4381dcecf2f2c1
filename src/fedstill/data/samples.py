"""Samples in memory, and the data sets made of them.

Samples stay as they were stored (images: one byte a value where they can) and are indexed; only a batch becomes float.

    >>> import torch
    >>> from fedstill.data.kinds import Image
    >>> kind = Image((1, 8, 8), (0.5,), (0.25,))
    >>> three = Samples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), kind)
    >>> len(three), three.shape, three.counts(3).tolist(), three[1:].y.tolist()
    (3, (1, 8, 8), [1, 2, 0], [1, 1])
    >>> three.inputs()[0, 0, 0, 0].item()           # (0/255 − 0.5) / 0.25
    -2.0
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.errors import DataError, UsageError
from fedstill.core.kind import Kind

Index = Tensor | NDArray[Any] | slice | Sequence[int]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with their classes: `len(samples)`, `samples[index]`, and `inputs()` for a model."""

    x: Tensor
    """The samples as they are stored (pixels as bytes, words as numbers), along the first dimension."""
    y: Tensor
    """The class number of each."""
    kind: Kind
    """What one sample is: its shape, and how a model's input is made of it."""

    def __post_init__(self) -> None:
        wrong = self.kind.fault(self.x)
        if wrong is not None:
            raise DataError(wrong)
        if self.y.shape != self.x.shape[:1] or self.y.dtype != torch.int64:
            raise DataError(f"y is {self.y.dtype} {tuple(self.y.shape)}: must be int64 and of length {len(self.x)}")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input of a model."""
        return self.kind.shape

    def __getitem__(self, index: Index) -> "Samples":
        chosen = _index(index)
        return Samples(_take(self.x, chosen), _take(self.y, chosen), self.kind)

    def inputs(self, index: Index | None = None) -> Tensor:
        """What a model takes: all samples, or those of `index`, as a new tensor, normalised as their kind says."""
        return self.kind.inputs(self.x if index is None else _take(self.x, _index(index)))

    def counts(self, classes: int) -> Tensor:
        """How many samples each of `classes` classes has."""
        return torch.bincount(self.y, minlength=classes)

    @staticmethod
    def concat(parts: Sequence["Samples"]) -> "Samples":
        """All samples of `parts`, in their order; kinds (with their normalisation) and types must agree."""
        first = parts[0]
        for part in parts:
            if (part.kind, part.x.dtype) != (first.kind, first.x.dtype):
                raise DataError(
                    f"cannot join {_form(first)} and {_form(part)}: size, type and normalisation must agree"
                )
        return replace(first, x=torch.cat([p.x for p in parts]), y=torch.cat([p.y for p in parts]))


def _form(samples: Samples) -> str:
    return f"{str(samples.x.dtype).removeprefix('torch.')} {samples.kind.words()}"


def _index(index: Index) -> Tensor | slice:
    if isinstance(index, Tensor | slice):
        return index
    array = np.array(index)
    return torch.from_numpy(array if array.size else array.astype(np.int64))


def _take(values: Tensor, index: Tensor | slice) -> Tensor:
    if isinstance(index, slice) or index.dtype == torch.bool:
        return values[index]
    return values.index_select(0, index)  # a tenth of the time of values[index]


def batches(n: int, size: int, epochs: int, generator: torch.Generator, drop_single: bool = False) -> Iterator[Tensor]:
    """Index tensors of `size` over n samples: a fresh permutation an epoch, the last incomplete batch kept.

    `drop_single` drops a last batch of one, which BatchNorm cannot take.

        >>> [len(b) for b in batches(5, 2, 1, torch.Generator())]
        [2, 2, 1]
    """
    for _ in range(epochs):
        for part in torch.split(torch.randperm(n, generator=generator), size):
            if len(part) > drop_single:
                yield part


@dataclass(frozen=True, eq=False)
class Sites:
    """Which site every sample comes from: `train` and `test` hold a site's number for each sample of that part."""

    names: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: training samples, global test samples where there are any, its classes, and its sites."""

    name: str
    """What it is called in a run and in a report."""
    train: Samples
    """What clients train on, and are tested on where a share is kept back."""
    test: Samples | None
    """The global test; None where the data bring none."""
    classes: int
    """How many classes there are."""
    class_names: tuple[str, ...]
    """Their names, in the order of their numbers."""
    source: str = ""
    """Where it was read from, for the run's record."""
    sites: Sites | None = None
    """Who holds each sample, where the data say so."""
    notes: tuple[str, ...] = ()
    """What a user should know of how it was read."""
    doubts: tuple[str, ...] = ()
    """What may be wrong with them, or with how they were read."""
    overlapping: bool = False
    """Training samples share parts, as windows do with a step shorter than they are: a share of them is no test."""

    @property
    def kind(self) -> Kind:
        """What one sample is."""
        return self.train.kind

    def subset(self, samples: int, seed: int | np.random.Generator, balanced: bool = False) -> "Dataset":
        """The data set with `samples` of its training samples, classes in the same proportions.

        `balanced` takes the same number of every class instead (FedKF's EMNIST: 480 of each of 26 letters).
        """
        counts = self.train.counts(self.classes).numpy()
        if samples < 1:
            raise UsageError(f"samples = {samples}: must be ≥ 1")
        if samples > counts.sum():
            raise UsageError(f"samples = {samples}: {self.name} has only {counts.sum()} training samples")
        wanted = apportion(np.sign(counts) if balanced else counts, samples)
        if (wanted > counts).any():
            poor = int(np.argmax(wanted - counts))
            raise UsageError(
                f"samples = {samples}: needs {wanted[poor]} of class {self.class_names[poor]}, "
                f"{self.name} has {counts[poor]}"
            )
        rng, labels = np.random.default_rng(seed), self.train.y.numpy()
        chosen = [rng.choice(np.flatnonzero(labels == c), k, replace=False) for c, k in enumerate(wanted) if k]
        index = np.sort(np.concatenate(chosen))
        sites = None if self.sites is None else replace(self.sites, train=self.sites.train[index])
        return replace(self, train=self.train[index], sites=sites)


def apportion(weights: NDArray[Any], total: int) -> NDArray[np.int64]:
    """Divide a whole number in proportion to weights, by largest remainders (ties: the first).

    >>> apportion(np.array([5, 3, 2]), 5).tolist()          # 2.5, 1.5, 1
    [3, 1, 1]
    """
    exact = total * (weights / weights.sum())
    whole: NDArray[np.int64] = np.floor(exact + 1e-9).astype(np.int64)
    rest = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
    return whole
