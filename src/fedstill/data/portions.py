"""Who has which samples, for any number of clients: one array of indices, of which a client's own are a view.

>>> portions = Portions.by_owner(np.array([1, 0, 1, 1]), clients=3)
>>> [part.tolist() for part in portions], portions.sizes.tolist()
([[1], [0, 2, 3], []], [1, 3, 0])
"""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Portions(Sequence[Ints]):
    """Everybody's indices one after the other in `flat`, as many each as `sizes` says.

    A million clients are three arrays, not a million: a client's own, from one of `edges` to the next, is made when
    somebody asks for it.
    """

    def __init__(self, flat: Ints, sizes: Ints) -> None:
        self.flat = flat
        self.sizes = sizes
        self.edges = np.concatenate([[0], np.cumsum(sizes)])

    @classmethod
    def of(cls, parts: Sequence[Ints]) -> "Portions":
        """The same indices as these, which may be portions already."""
        if isinstance(parts, Portions):
            return parts
        none = np.empty(0, np.int64)  # so that nobody at all is possible, too
        return cls(np.concatenate([none, *parts]), np.array([len(part) for part in parts], np.int64))

    @classmethod
    def by_owner(cls, owner: Ints, clients: int) -> "Portions":
        """Of every sample who has it: a number from 0 to `clients` - 1, or a negative one for nobody."""
        first = int((owner < 0).sum())
        return cls(np.argsort(owner, kind="stable")[first:], np.bincount(owner[owner >= 0], minlength=clients))

    def counts(self, labels: NDArray[np.integer], classes: int) -> Ints:
        """How many samples of each class each client has: clients × classes."""
        places = np.repeat(np.arange(len(self)) * classes, self.sizes) + labels[self.flat]
        return np.bincount(places, minlength=len(self) * classes).reshape(len(self), classes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Ints: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[Ints]: ...
    def __getitem__(self, client: int | slice) -> Ints | Sequence[Ints]:
        if isinstance(client, slice):
            return [self[k] for k in range(len(self))[client]]
        k = range(len(self))[client]
        return self.flat[self.edges[k] : self.edges[k + 1]]
