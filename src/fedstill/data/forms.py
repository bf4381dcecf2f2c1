"""What an array is: which kind of data, and how that kind stores it.

The kind follows from the shape where nobody says it by name: N×C×H×W, N×H×W×C, and N×H×W of squares or of whole
numbers from 0 to 255 are images; other N×C×T are series; N×D is a table; anything else plain arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core.errors import DataError, unknown
from fedstill.core.kind import Kind, kinds
from fedstill.data.kinds import Image, Plain, Series, Table, Tokens
from fedstill.data.values import rounded

Norm = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class About:
    """What is known of arrays besides their numbers."""

    kind: str = "auto"
    names: tuple[str, ...] = ()
    """Of the columns of a table, or of the channels of series."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of the columns whose numbers are codes."""
    norm: Norm | None = None
    """Published mean and deviation of every channel of images, for values from 0 to 1."""


def kind_name(array: NDArray[Any], asked: str = "auto") -> str:
    """The name of the kind of data in an array: what is asked for, or what its shape and type tell."""
    if asked != "auto":
        if asked not in kinds:
            raise unknown("kind of data", asked, [*kinds, "auto"])
        return asked
    if array.ndim in (1, 2):
        return "table"
    if array.ndim == 4:
        return "image"
    if array.ndim == 3:
        whole = array.dtype.kind in "iu" and array.size > 0
        beyond_bytes = whole and (array.min() < 0 or array.max() > 255)
        square = array.shape[1] == array.shape[2]
        return "series" if not square and (beyond_bytes or array.dtype.kind == "f") else "image"
    return "plain"


def stored(where: str, array: NDArray[Any], name: str, about: About) -> NDArray[Any]:
    """The array as its kind stores it: bytes or float32 (tokens: int32), channels first, numbers before categories."""
    if array.size == 0:
        raise DataError(f"{where}: empty, no {kinds[name].plural}")
    match name:
        case "image":
            return writable(uint8_or_float32(where, _channels_first(where, array)))
        case "table":
            return writable(_rows(where, array, about))
        case "tokens":
            return writable(_tokens(where, array))
    if name == "series" and array.ndim != 3:
        raise DataError(f"{where}: x has shape {array.shape}; series must be N×C×T")
    return writable(_float32(where, array, kinds[name].plural))


def measured(array: NDArray[Any], name: str, about: About) -> Kind:
    """The kind of an array of stored samples, with the normalisation that its numbers ask for."""
    match name:
        case "image":
            return Image.of(array, _published(array, about.norm))
        case "series":
            return Series.of(array, about.names)
        case "table":
            numeric, categorical = sorted_columns(array.shape[1], about)
            return Table.of(array, numeric, categorical, tuple(tuple(about.categories[c]) for c in categorical))
        case "tokens":
            return Tokens(array.shape[1], max(2, int(array.max()) + 1))
    return Plain.of(array)


def coarse(array: NDArray[Any], name: str, about: About) -> tuple[str, ...]:
    """A line for every column or channel of numbers for which float32 is too coarse."""
    if name not in ("table", "series") or array.dtype.kind not in "iuf" or array.dtype.itemsize < 4:
        return ()
    flat = array[:, None] if array.ndim == 1 else array
    usual = "column" if name == "table" else "channel"
    names = about.names or tuple(f"{usual} {i}" for i in range(flat.shape[1]))
    lines = [rounded(n, flat[:, i].ravel()) for i, n in enumerate(names[: flat.shape[1]]) if n not in about.categories]
    return tuple(line for some in lines for line in some)


def sorted_columns(count: int, about: About) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the columns of numbers, and of those of categories."""
    names = about.names or tuple(f"column {i}" for i in range(count))
    return tuple(n for n in names if n not in about.categories), tuple(n for n in names if n in about.categories)


def _published(pixels: NDArray[Any], norm: Norm | None) -> Norm | None:
    """Constants that papers quote hold for values in 0..1, and for the channels they name."""
    unit = pixels.dtype == np.uint8 or (pixels.min() >= 0 and pixels.max() <= 1)
    return norm if norm is not None and unit and len(norm[0]) == pixels.shape[1] else None


def _channels_first(where: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4:
        return array.transpose(0, 3, 1, 2) if _channels_last(array.shape) else array
    raise DataError(f"{where}: x has shape {array.shape}; must be N×H×W, N×H×W×C or N×C×H×W")


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Which axis holds the channels: the one of 1 or 3, else the shorter; the first in doubt."""
    _, first, _, last = shape
    if first in (1, 3) or last in (1, 3):
        return first not in (1, 3)
    return last < first


def uint8_or_float32(where: str, array: NDArray[Any]) -> NDArray[Any]:
    """Bytes where all values are whole and from 0 to 255, else float32."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    return _float32(where, array, "images")


def _float32(where: str, array: NDArray[Any], plural: str) -> NDArray[Any]:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: x is of type {array.dtype}; must be numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        one = {"images": "image", "arrays": "array"}.get(plural, plural)
        raise DataError(f"{where}: x has NaN or infinite values, first in {one} {first_row(~np.isfinite(array))}")
    return array


def _rows(where: str, array: NDArray[Any], about: About) -> NDArray[Any]:
    """Rows as float32, numbers before categories; NaN is a missing value, an infinite one is refused."""
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"{where}: x is {array.dtype} of shape {array.shape}; a table must be N×D numbers")
    if about.names and len(about.names) != array.shape[1]:
        raise DataError(f"{where}: {len(about.names)} names for {array.shape[1]} columns")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    names = about.names or tuple(f"column {i}" for i in range(array.shape[1]))
    if np.isinf(array).any():
        row = first_row(np.isinf(array))
        raise DataError(f"{where}: row {row}, {names[int(np.isinf(array[row]).argmax())]}: an infinite number")
    order = [names.index(n) for part in sorted_columns(len(names), about) for n in part]
    for column, known in about.categories.items():
        codes = array[:, names.index(column)] if column in names else np.zeros(1)
        wrong = ~np.isnan(codes) & ((codes < 0) | (codes >= len(known)) | (codes != np.floor(codes)))
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(f"{where}: row {row}, {column}: code {codes[row]:g}, must be whole, ≥ 0 and < {len(known)}")
    return array[:, order]


def _tokens(where: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 2 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= 2**31:
        raise DataError(
            f"{where}: x is {array.dtype} of shape {array.shape}; tokens must be N×length whole numbers ≥ 0"
        )
    return array.astype(np.int32)


def as_array(where: str, what: str, value: Any) -> NDArray[Any]:
    """Anything array-like (numpy, torch, lists) as a numpy array."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return np.asarray(value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy())
    try:
        return np.asarray(value)
    except ValueError:
        raise DataError(f"{where}: {what} is ragged; all images must have one size") from None


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """What torch can share without a warning."""
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else array.copy()


def first_row(wrong: NDArray[np.bool_]) -> int:
    """The first row in which anything is wrong."""
    return int(wrong.reshape(len(wrong), -1).any(axis=1).argmax())
