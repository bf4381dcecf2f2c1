"""Fingerprints: what tells data apart whatever they came as, a name, a path or arrays in memory.

>>> import torch
>>> digest(torch.tensor([1, 2])) == digest(torch.tensor([1, 2])) != digest(torch.tensor([2, 1]))
True
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedstill.data.portions import Ints
from fedstill.data.samples import Dataset, Samples

_known: WeakKeyDictionary[Samples, tuple[str, str]] = WeakKeyDictionary()
"""Digests of samples that are still in memory: a data set is read once, and may be used by many runs."""


@dataclass(frozen=True)
class Fingerprint:
    """Digests of everything a run's result hangs on besides its settings."""

    inputs: str
    labels: str
    split: str
    """Who trains, and is tested, on which samples; unlike the others it changes with the seed."""

    @property
    def data(self) -> str:
        """Inputs and labels in one word: the same for all seeds."""
        return _joined([self.inputs, self.labels])


def fingerprint(data: Iterable[Dataset], parts: Sequence[Any], tests: Sequence[Any]) -> Fingerprint:
    """The fingerprint of a run: its data sets as they were read, every client's training samples, every test."""
    samples = [part for dataset in data for part in (dataset.train, dataset.test) if part is not None]
    digests = [_samples(part) for part in samples]
    split = (_indices(np.ascontiguousarray(index, np.int64)) for index in chain(parts, tests))
    return Fingerprint(_joined(x for x, _ in digests), _joined(y for _, y in digests), _joined(split))


def digest(tensor: torch.Tensor) -> str:
    """A digest of a tensor's type, shape and numbers."""
    mark = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
    mark.update(tensor.detach().cpu().contiguous().numpy().data)
    return mark.hexdigest()


def _indices(index: Ints) -> str:
    """`digest` of them as a tensor, for as many clients as there are.

    >>> _indices(np.arange(3)) == digest(torch.arange(3))
    True
    """
    mark = hashlib.blake2b(f"torch.int64({len(index)},)".encode(), digest_size=16)
    mark.update(index.data)
    return mark.hexdigest()


def _samples(samples: Samples) -> tuple[str, str]:
    if samples not in _known:
        _known[samples] = digest(samples.x), digest(samples.y)
    return _known[samples]


def _joined(digests: Iterable[str]) -> str:
    mark = hashlib.blake2b(digest_size=8)
    for place, one in enumerate(digests):
        mark.update(f" {one}".encode() if place else one.encode())
    return mark.hexdigest()
