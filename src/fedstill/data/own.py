"""A party's own data, as it brings them: a site of a deployment, or a client of a simulation whose data are a path."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstill.core import rng
from fedstill.core.errors import DataError
from fedstill.core.kind import Kind
from fedstill.data import arrays
from fedstill.data.columns import is_table
from fedstill.data.files import read_npz
from fedstill.data.partition import local_split
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset, Samples
from fedstill.data.sources import Spec, load, read_table
from fedstill.data.summary import recast

Indices = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Own:
    """Training samples, the party's own test samples where it brought some, the classes it knows, what is in doubt."""

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    def cast(self, kind: Kind, class_names: tuple[str, ...]) -> "Own":
        """The same samples as the kind and with the class numbers that all parties share."""
        number = torch.tensor([class_names.index(name) for name in self.class_names])

        def shared(samples: Samples) -> Samples:
            return replace(recast(samples, kind), y=number[samples.y])

        return Own(shared(self.train), None if self.test is None else shared(self.test), class_names, self.doubts)

    def divided(self, share: float, seed: int, client: int) -> tuple[Samples, Samples]:
        """What client `client` trains on, and its local test: its own test part, or `share` of its samples."""
        if self.test is not None:
            return self.train, self.test
        if not share:
            return self.train, self.train[:0]
        (train,), (test,) = local_split([np.arange(len(self.train))], local_stream(seed, client), share)
        return self.train[train], self.train[test]


def local_stream(seed: int, client: int) -> np.random.Generator:
    """The stream that cuts the local test from a client's own data: it needs to know nobody else's."""
    return rng.numpy_stream(seed, "local test", client)


def read_own(spec: Spec, reading: Reading | None = None) -> Own:
    """A party's own data from a name, an image folder, an .npz file or a table; a file may hold a single class."""
    if isinstance(spec, str) and spec.endswith(".npz"):
        path = Path(spec).expanduser()
        named = {arrays.ALIASES.get(key, key): value for key, value in read_npz(path).items()}
        if set(named) >= {"x_train", "y_train"}:
            return _from_arrays(named, str(path))
    if isinstance(spec, str) and is_table(path := Path(spec).expanduser()):
        table = read_table(path, reading or Reading(), path.stat().st_mtime_ns if path.is_file() else 0, alone=True)
        return Own(table.train, table.test, table.class_names, table.doubts)
    dataset = load(spec, reading)
    return Own(dataset.train, dataset.test, dataset.class_names, dataset.doubts)


def _from_arrays(named: arrays.Arrays, where: str) -> Own:
    about = arrays.known_about(where, named)
    parts = {part: named[f"y_{part}"] for part in ("train", "test") if {f"x_{part}", f"y_{part}"} <= set(named)}
    labels, names = arrays.numbered(where, parts, arrays.texts(named.get("classes")), least=1)
    train = arrays.samples(f"{where}, train part", named["x_train"], labels["train"], about=about)
    test = None
    if "test" in labels:
        test = arrays.samples(f"{where}, test part", named["x_test"], labels["test"], train, about)
    highest = max(int(part.y.max()) for part in (train, test) if part is not None)
    if names and highest >= len(names):
        raise DataError(f"{where}: label {highest} found, but there are {len(names)} classes")
    return Own(train, test, names or arrays.indices(where, highest, len(train)), arrays.doubts(where, named, about))


def pool_own(parties: Sequence[Own], name: str) -> tuple[Dataset, tuple[Indices, ...], tuple[Indices, ...]]:
    """Parties with shared classes and normalisation as one data set, and the indices of each one's train and test."""
    pieces: list[Samples] = []
    train: list[Indices] = []
    test: list[Indices] = []
    at = 0
    for party in parties:
        for part, indices in ((party.train, train), (party.test, test)):
            size = 0 if part is None else len(part)
            indices.append(np.arange(at, at + size))
            at += size
            if part is not None:
                pieces.append(part)
    names = parties[0].class_names
    doubts = tuple(f"client {number}: {line}" for number, party in enumerate(parties) for line in party.doubts)
    made = Dataset(name, Samples.concat(pieces), None, len(names), names, source=name, doubts=doubts)
    return made, tuple(train), tuple(test)
