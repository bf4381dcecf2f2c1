"""Readers of the files that image data sets come in: .npz, IDX, CIFAR's batches, SVHN's .mat.

Every reader gives x_train, y_train, x_test, y_test; a damaged file is named in one line. Nothing in a file is ever run.
"""

import gzip
import math
import pickle
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError

P = ParamSpec("P")
_DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError, MemoryError,
    NotImplementedError, OverflowError, zlib.error, zipfile.BadZipFile, pickle.UnpicklingError,
)  # fmt: skip


def _reading(path: Path, read: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    """What `read` gives, with whatever a broken file makes it raise told as one line."""
    try:
        return read(*args, **kwargs)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read") from None
    except _DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: damaged or cut short, fetch it again ({reason})") from None


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file."""

    def read() -> dict[str, NDArray[Any]]:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {key: _plain_array(path, arrays, key) for key in arrays.files}

    arrays: dict[str, NDArray[Any]] = _reading(path, read)
    return arrays


def _plain_array(path: Path, arrays: Any, key: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = arrays[key]
        return array
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise DataError(
            f"{path}: {key} holds Python objects, which are not read; save it as texts or numbers"
        ) from None


def read_idx(path: Path) -> NDArray[np.uint8]:
    """One IDX file of bytes (MNIST's format), gzipped or not."""

    def read() -> NDArray[np.uint8]:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
            raise ValueError("no IDX file of bytes")
        start = 4 + 4 * raw[3]
        shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4"))
        if len(shape) != raw[3] or len(raw) - start != math.prod(shape):
            raise ValueError(f"{len(raw)} bytes, its head says {start + math.prod(shape)}")
        return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)

    array: NDArray[np.uint8] = _reading(path, read)
    return array


def find_idx(folder: Path, prefix: str = "") -> dict[str, Path] | None:
    """The four IDX files of a data set in a folder, or None."""
    files = {}
    for part, names in {"train": ("train",), "test": ("t10k", "test")}.items():
        for key, kind in {"x": "images", "y": "labels"}.items():
            forms = (f"{kind}-idx{3 if key == 'x' else 1}-ubyte", f"{kind}.idx{3 if key == 'x' else 1}-ubyte")
            paths = [folder / f"{prefix}{n}-{form}{end}" for n in names for form in forms for end in ("", ".gz")]
            path = next((p for p in paths if p.is_file()), None)
            if path is None:
                return None
            files[f"{key}_{part}"] = path
    return files


def read_cifar10(folder: Path) -> dict[str, NDArray[Any]]:
    """CIFAR-10's folder `cifar-10-batches-py`."""
    train = [_cifar_batch(folder / f"data_batch_{i}", b"labels") for i in range(1, 6)]
    test = _cifar_batch(folder / "test_batch", b"labels")
    return {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y for _, y in train]),
        "x_test": test[0],
        "y_test": test[1],
    }


def read_cifar100(folder: Path) -> dict[str, NDArray[Any]]:
    """CIFAR-100's folder `cifar-100-python`, with its 100 fine labels."""
    parts = {part: _cifar_batch(folder / part, b"fine_labels") for part in ("train", "test")}
    return {f"{key}_{part}": xy[i] for part, xy in parts.items() for i, key in enumerate("xy")}


def _cifar_batch(path: Path, labels: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    def read() -> tuple[NDArray[Any], NDArray[Any]]:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the files are of 2009, and numpy says so
            batch = _ArraysOnly(file, encoding="bytes").load()
        return np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32), np.asarray(batch[labels], np.int64)

    batch: tuple[NDArray[Any], NDArray[Any]] = _reading(path, read)
    return batch


class _ArraysOnly(pickle.Unpickler):
    """Reads a pickle of plain containers and numpy arrays; anything else in it is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        """Only what an array of numbers is made from."""
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]  # the function itself, wherever this numpy keeps it
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"holds {module}.{name}, which no data file should: refused")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding}")
    return text.encode("latin1")


_READ_MAT = """
import sys
import numpy as np
from scipy.io import loadmat
content = loadmat(sys.argv[1], variable_names=["X", "y"])
np.savez(sys.argv[2], X=content["X"], y=content["y"])
"""


def read_svhn(folder: Path) -> dict[str, NDArray[Any]]:
    """SVHN's cropped digits, `train_32x32.mat` and `test_32x32.mat`; label 10 is the digit 0."""

    def read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
        content = _read_mat(path)
        images, labels = content["X"], content["y"]
        if images.ndim != 4 or images.dtype.kind not in "uif" or labels.dtype.kind not in "uif":
            raise ValueError(f"X must be numbers of four dimensions and y numbers, not {images.shape} {images.dtype}")
        return images.transpose(3, 2, 0, 1), labels.ravel().astype(np.int64) % 10

    paths = {part: folder / f"{part}_32x32.mat" for part in ("train", "test")}
    parts = {part: _reading(path, read, path) for part, path in paths.items()}
    return {f"{key}_{part}": xy[i] for part, xy in parts.items() for i, key in enumerate("xy")}


def _read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """X and y of a MATLAB file, read by a process of its own, which SciPy's reader ends over some damaged files."""
    if not path.is_file():
        raise FileNotFoundError(path)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "arrays.npz"
        done = subprocess.run(
            [sys.executable, "-c", _READ_MAT, str(path), str(made)], capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            complaint = done.stderr.strip().splitlines()
            raise ValueError(complaint[-1] if complaint and done.returncode > 0 else "its reader crashed")
        return read_npz(made)
