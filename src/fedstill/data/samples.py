"""Samples in memory, and the data sets made of them.

Images stay as they were stored (one byte a value where they can) and are indexed; only a batch becomes float.

    >>> import torch
    >>> three = Samples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), (0.5,), (0.25,))
    >>> len(three), three.shape, three.counts(3).tolist(), three[1:].y.tolist()
    (3, (1, 8, 8), [1, 2, 0], [1, 1])
    >>> three.images()[0, 0, 0, 0].item()           # (0/255 − 0.5) / 0.25
    -2.0
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import DataError, UsageError

Index = Tensor | NDArray[Any] | slice | Sequence[int]


@dataclass(frozen=True, eq=False)
class Samples:
    """Images `x` (N×C×H×W, uint8 or float32) with class numbers `y` (N, int64), and how `images` normalises them.

    `mean` and `std` have one entry a channel; for uint8 images they speak of values divided by 255.
    """

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.x.dtype not in (torch.uint8, torch.float32):
            raise DataError(f"x is {self.x.dtype} {tuple(self.x.shape)}: must be N×C×H×W, uint8 or float32")
        if self.y.shape != self.x.shape[:1] or self.y.dtype != torch.int64:
            raise DataError(f"y is {self.y.dtype} {tuple(self.y.shape)}: must be int64 and of length {len(self.x)}")
        if not len(self.mean) == len(self.std) == self.x.shape[1]:
            raise DataError(f"mean and std must have one entry for each of {self.x.shape[1]} channels")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    def __getitem__(self, index: Index) -> "Samples":
        chosen = _index(index)
        return replace(self, x=_take(self.x, chosen), y=_take(self.y, chosen))

    def images(self, index: Index | None = None) -> Tensor:
        """The images (all, or those of `index`) as a new float32 tensor, normalised: (x − mean) / std."""
        chosen = self.x if index is None else _take(self.x, _index(index))
        shift, scale = self._normal
        return torch.sub(chosen, shift).div_(scale)

    @cached_property
    def _normal(self) -> tuple[Tensor, Tensor]:
        unit = 255.0 if self.x.dtype == torch.uint8 else 1.0
        mean, std = (torch.tensor(v, dtype=torch.float64, device=self.x.device) for v in (self.mean, self.std))
        return (mean * unit).float().view(-1, 1, 1), (std * unit).float().view(-1, 1, 1)

    def counts(self, classes: int) -> Tensor:
        """How many samples each of `classes` classes has."""
        return torch.bincount(self.y, minlength=classes)

    def fit(self, pixels: tuple[int, ...] | None, black: float = 0) -> "Samples":
        """Images of a size that the model takes (`pixels`; None: any): 28 gets a border to 32, 8 is repeated to 32."""
        _, height, width = self.shape
        if pixels is None or (height == width and height in pixels):
            return self
        if 32 in pixels and (height, width) == (28, 28):
            return replace(self, x=F.pad(self.x, (2, 2, 2, 2), value=black))
        if 32 in pixels and (height, width) == (8, 8):
            return replace(self, x=self.x.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3))
        sizes = " or ".join(f"{p}×{p}" for p in pixels)
        brought = " (28×28 and 8×8 are brought to 32×32)" if 32 in pixels else ""
        raise UsageError(f"images of {height}×{width} pixels: the model takes {sizes}{brought}; resize them first")

    @staticmethod
    def concat(parts: Sequence["Samples"]) -> "Samples":
        """All samples of `parts`, in their order; sizes, types and normalisation must agree."""
        first = parts[0]
        for part in parts:
            if (part.shape, part.x.dtype, part.mean, part.std) != (first.shape, first.x.dtype, first.mean, first.std):
                raise DataError(
                    f"cannot join {_form(first)} and {_form(part)}: size, type and normalisation must agree"
                )
        return replace(first, x=torch.cat([p.x for p in parts]), y=torch.cat([p.y for p in parts]))


def _form(samples: Samples) -> str:
    size = "×".join(map(str, samples.shape))
    return f"{str(samples.x.dtype).removeprefix('torch.')} images of {size} with mean {samples.mean}, std {samples.std}"


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
        order = torch.randperm(n, generator=generator)
        for start in range(0, n, size):
            if not (drop_single and n - start == 1):
                yield order[start : start + size]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: training samples, global test samples where there are any, and its classes."""

    name: str
    train: Samples
    test: Samples | None
    classes: int
    class_names: tuple[str, ...]
    source: str = ""  # where it was read from, for the run's record

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
        return replace(self, train=self.train[np.sort(np.concatenate(chosen))])

    def fit(self, pixels: tuple[int, ...] | None) -> "Dataset":
        """The data set in an image size that the model takes; see `Samples.fit`."""
        black = 0 if self.train.x.dtype == torch.uint8 else self.train.x.min().item()
        test = None if self.test is None else self.test.fit(pixels, black)
        return replace(self, train=self.train.fit(pixels, black), test=test)


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
