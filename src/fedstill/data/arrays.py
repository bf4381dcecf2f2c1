"""From anybody's arrays to samples, with one clear line for everything that can be wrong with them.

>>> import numpy as np
>>> samples("mine", np.zeros((4, 28, 28), np.uint8), [0, 1, 1, 0]).shape
(1, 28, 28)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.data.samples import Dataset, Samples

Arrays = Mapping[str, Any]  # x_train, y_train and, where there is a test part, x_test, y_test
Norm = tuple[tuple[float, ...], tuple[float, ...]]


def measure(pixels: NDArray[Any]) -> Norm:
    """Mean and deviation of every channel; uint8 values count as value/255. A constant channel gets deviation 1."""
    if pixels.dtype == np.uint8:
        scale = np.arange(256) / 255
        shares = [np.bincount(pixels[:, c].ravel(), minlength=256) / pixels[:, c].size for c in range(pixels.shape[1])]
        mean = [float(share @ scale) for share in shares]
        std = [float(share @ (scale - m) ** 2) ** 0.5 for share, m in zip(shares, mean, strict=True)]
    else:
        mean = [float(m) for m in pixels.mean(axis=(0, 2, 3), dtype=np.float64)]
        std = [float(s) for s in pixels.std(axis=(0, 2, 3), dtype=np.float64)]
    return tuple(mean), tuple(s if s > 0 else 1.0 for s in std)


def dataset(
    name: str, arrays: Arrays, where: str, class_names: tuple[str, ...] | None = None, norm: Norm | None = None
) -> Dataset:
    """A checked data set from arrays; classes and normalisation are measured on them where they are not given."""
    for key in ("x_train", "y_train"):
        if key not in arrays:
            raise DataError(f"{where}: no {key} inside, only {', '.join(sorted(arrays)) or 'nothing'}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{where}: x_test and y_test belong together, one is missing")

    def published(pixels: NDArray[Any]) -> Norm:
        """Constants that papers quote hold for values in 0..1, and for the channels they name."""
        unit = pixels.dtype == np.uint8 or (pixels.min() >= 0 and pixels.max() <= 1)
        return norm if norm is not None and unit and len(norm[0]) == pixels.shape[1] else measure(pixels)

    train = samples(f"{where}, train part", arrays["x_train"], arrays["y_train"], published)
    test = None
    if "x_test" in arrays:
        test = samples(f"{where}, test part", arrays["x_test"], arrays["y_test"], lambda _: (train.mean, train.std))
        if (test.shape, test.x.dtype) != (train.shape, train.x.dtype):
            raise DataError(f"{where}: train images are {form(train)}, test images {form(test)}")
    classes = count_classes(where, [train], test)
    if class_names is not None and classes > len(class_names):
        raise DataError(f"{where}: label {classes - 1} found, but {name} has {len(class_names)} classes")
    names = class_names or tuple(map(str, range(classes)))
    return Dataset(name, train, test, len(names), names, source=where)


def samples(where: str, x: Any, y: Any, norm: Callable[[NDArray[Any]], Norm] = measure) -> Samples:
    """Checked samples from N×H×W, N×H×W×C or N×C×H×W images and class numbers (numpy, torch or lists)."""
    pixels, labels = _images(where, x), _labels(where, y)
    if len(pixels) != len(labels):
        raise DataError(f"{where}: {len(pixels)} images but {len(labels)} labels")
    return Samples(torch.from_numpy(pixels), torch.from_numpy(labels), *norm(pixels))


def count_classes(where: str, train: Sequence[Samples], test: Samples | None = None) -> int:
    """How many classes these samples speak of together: the largest label + 1. Training samples must have two."""
    seen = np.unique(np.concatenate([part.y.numpy() for part in train]))
    if len(seen) == 1:
        raise DataError(f"{where}: all training samples have label {seen[0]}; at least two classes are needed")
    highest = max(int(seen[-1]), -1 if test is None else int(test.y.max()))
    if highest >= max(1000, sum(map(len, train))):
        raise DataError(f"{where}: label {highest} is too large; number the classes 0, 1, 2, …")
    return highest + 1


def _images(where: str, x: Any) -> NDArray[Any]:
    array = _array(where, "x", x)
    if array.size == 0:
        raise DataError(f"{where}: empty, no images")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and _channels_last(array.shape):
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 4:
        raise DataError(f"{where}: x has shape {array.shape}; must be N×H×W, N×H×W×C or N×C×H×W")
    return _writable(_uint8_or_float32(where, array))


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Which axis holds the channels: the one of 1 or 3, else the shorter; the first in doubt."""
    _, first, _, last = shape
    if first in (1, 3) or last in (1, 3):
        return first not in (1, 3)
    return last < first


def _uint8_or_float32(where: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: x is of type {array.dtype}; must be numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise DataError(f"{where}: x has NaN or infinite values, first in image {_first(~np.isfinite(array))}")
    return array


def _labels(where: str, y: Any) -> NDArray[np.int64]:
    array = _array(where, "y", y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{where}: y has shape {array.shape}; must be one class number a sample")
    if array.size == 0:
        raise DataError(f"{where}: empty, no labels")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels are of type {array.dtype}; must be whole numbers ≥ 0")
    wrong = ~(np.isfinite(array) & (array >= 0) & (array == np.floor(array)))
    if wrong.any():
        raise DataError(f"{where}: label {array[wrong][0]} of sample {_first(wrong)}; must be a whole number ≥ 0")
    return _writable(array.astype(np.int64))


def _array(where: str, what: str, value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return np.asarray(value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy())
    try:
        return np.asarray(value)
    except ValueError:
        raise DataError(f"{where}: {what} is ragged; all images must have one size") from None


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """What torch can share without a warning."""
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else array.copy()


def _first(wrong: NDArray[np.bool_]) -> int:
    return int(wrong.reshape(len(wrong), -1).any(axis=1).argmax())


def form(part: Samples) -> str:
    """What must agree between parts: type, channels, height and width."""
    return f"{str(part.x.dtype).removeprefix('torch.')} {'×'.join(map(str, part.shape))}"
