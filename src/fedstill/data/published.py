"""The published data sets: what they are, and where this machine has them.

Searched in this order: the folders of FEDSTILL_DATA, Debian's `/usr/share/datasets`, Hugging Face.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError
from fedstill.data.arrays import Arrays, dataset
from fedstill.data.files import find_idx, read_cifar10, read_cifar100, read_idx, read_npz, read_svhn
from fedstill.data.forms import Norm
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset


@runtime_checkable
class Found(Protocol):
    """A loader that can say where it would read from, without reading."""

    doc: str
    """The data set in one line."""

    def where(self) -> str | None:
        """A folder, a package …; None: it is not on this machine."""


@runtime_checkable
class Readable(Protocol):
    """A registered data set that can be read in several ways."""

    def read_as(self, reading: Reading) -> Dataset:
        """The data set, read as asked."""


def with_site(arrays: Arrays, site: str | None, where: str) -> Arrays:
    """The arrays with those called `site` (`region`: region_train, region_test, region_names) as their sites."""
    if site is None:
        return arrays
    renamed = {f"{site}{end}": f"site{end}" for end in ("", "_train", "_test", "_names")}
    if not any(name in arrays for name in (site, f"{site}_train")):
        known = sorted({key.removesuffix("_train") for key in arrays if np.ndim(arrays[key]) == 1})
        raise UsageError(f"site = {site!r}: no such array in {where}; there are {', '.join(known)}")
    kept = {key: value for key, value in arrays.items() if not key.startswith("site") or key in renamed}
    return {renamed.get(key, key): value for key, value in kept.items()}


VARIABLE = "FEDSTILL_DATA"
DEBIAN = Path("/usr/share/datasets")
_FASHION_OPENING = bytes([9, 0, 0, 3, 0, 2, 7, 2, 5, 5])  # its first labels; its files are named as MNIST's are


def folders() -> list[Path]:
    """The folders that FEDSTILL_DATA names."""
    return [Path(p).expanduser() for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]


@dataclass(frozen=True)
class Hub:
    """A data set's place on Hugging Face, and the names of its columns."""

    repo: str
    config: str | None = None
    image: str = "image"
    label: str = "label"


PATIENCE = 60.0
"""Seconds in which a download that failed is not tried again: a table's next cell need not wait for it once more."""
_FAILED: dict[Hub, tuple[float, str]] = {}
"""When a download failed, and why."""


@dataclass(frozen=True)
class Published:
    """A data set that many papers use. Calling it loads it; `where()` only looks for it."""

    name: str
    doc: str
    class_names: tuple[str, ...]
    norm: Norm
    hub: Hub | None  # None: nowhere that is known
    files: str  # what FEDSTILL_DATA may hold beside an .npz file
    folders: tuple[str, ...] = ()  # sub-folders in which the original files stand
    transposed: bool = False  # EMNIST's IDX files and their copies lie on their side

    def __call__(self) -> Dataset:
        """Load it from the first place that has it; one line says what to do when none has."""
        place = self._on_disk(strict=True)
        where, read = place or self._online()
        arrays = read()
        return dataset(self.name, self._zero_based(arrays), where, self.class_names, self.norm)

    def where(self) -> str | None:
        """Where it would be read from, or None; opens no large file."""
        place = self._on_disk(strict=False)
        if place is not None:
            return place[0]
        return f"Hugging Face {self.hub.repo}, downloaded at first use" if self.hub and _hub_installed() else None

    def _on_disk(self, strict: bool) -> tuple[str, Callable[[], Arrays]] | None:
        for root in folders():
            if root.is_dir():
                place = self._npz(root) or self._original(root)
                if place is not None:
                    return place
            elif strict:
                raise DataError(f"{VARIABLE} = {root}: no such folder")
        return self._idx(DEBIAN / self.name)

    def _npz(self, root: Path) -> tuple[str, Callable[[], Arrays]] | None:
        exact = root / f"{self.name}.npz"
        files = [exact] if exact.is_file() else sorted(root.glob(f"{self.name}-*.npz"))
        return (str(files[0]), partial(read_npz, files[0])) if files else None

    def _original(self, root: Path) -> tuple[str, Callable[[], Arrays]] | None:
        for folder in (root, root / self.name, *(root / sub for sub in self.folders)):
            place = self._batches(folder) or self._idx(folder)
            if place is not None:
                return place
        return None

    def _batches(self, folder: Path) -> tuple[str, Callable[[], Arrays]] | None:
        own = {
            "cifar10": (folder / "cifar-10-batches-py", "data_batch_1", read_cifar10),
            "cifar100": (folder / "cifar-100-python", "train", read_cifar100),
            "svhn": (folder, "train_32x32.mat", read_svhn),
        }
        if self.name not in own:
            return None
        place, sign, read = own[self.name]
        return (str(place), partial(read, place)) if (place / sign).is_file() else None

    def _idx(self, folder: Path) -> tuple[str, Callable[[], Arrays]] | None:
        named = self.name.startswith("emnist-")  # EMNIST's files carry the name of their split
        if not named and self.name not in ("mnist", "fashion-mnist"):
            return None
        files = find_idx(folder, f"{self.name}-" if named else "")
        if files is None or (not named and not self._is_own(folder, files["y_train"])):
            return None
        return str(folder), partial(self._read_idx, files)

    def _is_own(self, folder: Path, labels: Path) -> bool:
        """MNIST and Fashion-MNIST name their files alike: a folder of its own tells, else the first labels do."""
        if folder.name == self.name or str(folder).endswith(self.folders):
            return True
        try:
            opening = read_idx(labels)[:10].tobytes()
        except DataError:
            return self.name == "mnist"
        return (opening == _FASHION_OPENING) == (self.name == "fashion-mnist")

    def _read_idx(self, files: dict[str, Path]) -> Arrays:
        return self._upright({key: read_idx(path) for key, path in files.items()})

    def _online(self) -> tuple[str, Callable[[], Arrays]]:
        todo = f"set {VARIABLE} to a folder that has {self.name}.npz (x_train, y_train, x_test, y_test) or {self.files}"
        if self.hub is None:
            raise DataError(f"{self.name} is not on this machine: {todo}")
        if not _hub_installed():
            raise DataError(
                f"{self.name} is not on this machine: {todo}, or `pip install 'fedstill[huggingface]'` to download it"
            )
        return f"huggingface.co/datasets/{self.hub.repo}", partial(self._download, self.hub, todo)

    def _download(self, hub: Hub, todo: str) -> Arrays:
        from fedstill.data.huggingface import fetch

        when, reason = _FAILED.get(hub, (-math.inf, ""))
        if time.monotonic() - when > PATIENCE:
            try:
                return self._upright(fetch(hub.repo, hub.config, hub.image, hub.label))
            except Exception as error:  # whatever the network and the hub's library come up with
                reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
                _FAILED[hub] = (time.monotonic(), reason)
        raise DataError(f"{self.name} could not be downloaded from {hub.repo} ({reason}): {todo}")

    def _upright(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if not self.transposed:
            return arrays
        return {k: a.swapaxes(1, 2) if k.startswith("x") and a.ndim >= 3 else a for k, a in arrays.items()}

    def _zero_based(self, arrays: Arrays) -> Arrays:
        """EMNIST's letters are numbered from 1 in the original files."""
        if self.name != "emnist-letters" or "y_train" not in arrays or np.min(arrays["y_train"], initial=1) != 1:
            return arrays
        return {k: np.asarray(a) - 1 if k.startswith("y") else a for k, a in arrays.items()}


def _hub_installed() -> bool:
    """Whether Hugging Face's `datasets` is there (a folder of that name in the working directory is not it)."""
    try:
        spec = find_spec("datasets")
    except ValueError:  # a module without a spec
        return True
    return spec is not None and spec.origin is not None


_DIGITS = tuple("0123456789")
_IDX = "its four IDX files (train-images-idx3-ubyte …, .gz or not)"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
MNIST_NORM: Norm = ((0.1307,), (0.3081,))

PUBLISHED = (
    Published(
        "mnist", "70,000 handwritten digits, 28×28 grey", _DIGITS, MNIST_NORM,
        Hub("ylecun/mnist"), _IDX, ("MNIST/raw",),
    ),
    Published(
        "fashion-mnist", "70,000 pieces of clothing, 10 classes, 28×28 grey",
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ((0.2860,), (0.3530,)),
        Hub("zalando-datasets/fashion_mnist"), f"a sub-folder fashion-mnist with {_IDX}", ("FashionMNIST/raw",),
    ),
    Published(
        "emnist-letters", "145,600 handwritten letters, 26 classes, 28×28 grey",
        tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), ((0.1722,), (0.3309,)),
        Hub("tanganke/emnist_letters"), "its four IDX files (emnist-letters-train-images-idx3-ubyte …, .gz or not)",
        ("EMNIST/raw",), transposed=True,
    ),
    Published(
        "emnist-byclass", "814,255 handwritten digits and letters, 62 classes, 28×28 grey",
        tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), ((0.1736,), (0.3317,)),
        None, "its four IDX files (emnist-byclass-train-images-idx3-ubyte …, .gz or not)",
        ("EMNIST/raw",), transposed=True,
    ),
    Published(
        "cifar10", "60,000 photographs, 10 classes, 32×32 RGB", tuple(_CIFAR10.split()),
        ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        Hub("uoft-cs/cifar10", image="img"), "the folder cifar-10-batches-py",
    ),
    Published(
        "cifar100", "60,000 photographs, 100 classes, 32×32 RGB", tuple(_CIFAR100.split()),
        ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        Hub("uoft-cs/cifar100", image="img", label="fine_label"), "the folder cifar-100-python",
    ),
    Published(
        "svhn", "99,289 house-number digits, 32×32 RGB", _DIGITS,
        ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        Hub("ufldl-stanford/svhn", "cropped_digits"), "train_32x32.mat and test_32x32.mat",
    ),
)  # fmt: skip
