"""Image folders: `train/<class>/*.png` with an optional `test/<class>/…`, or `<class>/*.png` alone."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.data.arrays import dataset
from fedstill.data.samples import Dataset

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_GREY = {"1", "L"}
DEEP = "I;16"
"""Grey images of 16 bits, as X-rays are; Pillow has several names for them."""
TOO_DEEP = "more than 8 bits a pixel; only grey images of 16 bits are read, and beside grey ones"


def read_folder(folder: Path, resize: int | None = None) -> Dataset:
    """The data set of an image folder; classes are its sub-folders, in alphabetical order.

    `resize`: bring all images to this many pixels a side, of whatever size they are.
    """
    train = _by_class(folder / "train")  # none if `train` is a class, as CIFAR-100 has one
    test = _by_class(folder / "test") if train else {}
    train = train or _by_class(folder)
    if not train:
        raise DataError(f"{folder}: no images in sub-folders; expected <class>/*.png or train/<class>/*.png")
    names = tuple(train)
    for name in test:
        if name not in train:
            raise DataError(f"{folder / 'test' / name}: class {name!r} has no images in {folder / 'train'}")
    if len(names) == 1:
        raise DataError(f"{folder}: only one class, {names[0]!r}; at least two are needed")
    files = [path for part in (train, test) for paths in part.values() for path in paths]
    size, mode = _common_form(files, resize)
    arrays: dict[str, NDArray[Any]] = {}
    for part, content in (("train", train), ("test", test)):
        if content:
            arrays[f"x_{part}"] = np.stack([_pixels(p, size, mode) for paths in content.values() for p in paths])
            arrays[f"y_{part}"] = np.repeat([names.index(n) for n in content], [len(p) for p in content.values()])
    return dataset(folder.resolve().name, arrays, str(folder), class_names=names)


def _by_class(folder: Path) -> dict[str, list[Path]]:
    classes = sorted(p for p in folder.glob("*") if p.is_dir() and not p.name.startswith("."))
    images = {c.name: sorted(p for p in c.iterdir() if p.suffix.lower() in _SUFFIXES) for c in classes}
    return {name: paths for name, paths in images.items() if paths}


def common_mode(modes: Iterable[str]) -> str | None:
    """How images of these modes (Pillow's names) are read together; None where they cannot be.

    >>> common_mode(["L", "1"]), common_mode(["L", "RGBA"]), common_mode(["L", "I;16B"]), common_mode(["I;16", "RGB"])
    ('L', 'RGB', 'I;16', None)
    """
    every = set(modes)
    grey = every <= _GREY
    deep = {mode for mode in every if mode.startswith(DEEP)}
    if every & {"I", "F"} or (deep and not every - deep <= _GREY):
        return None
    return DEEP if deep else "L" if grey else "RGB"


def pixels_of(image: Any, size: tuple[int, int], mode: str) -> NDArray[Any]:
    """The pixels of an opened image, channels first: bytes; of 16 bits (`mode` is DEEP) numbers from 0 to 1."""
    if mode != DEEP:
        image = image if image.size == size else image.convert(mode).resize(size)
        return np.asarray(image.convert(mode), np.uint8).reshape(size[1], size[0], -1).transpose(2, 0, 1)
    white = 65535 if image.mode.startswith(DEEP) else 255
    wide = image.convert("L" if image.mode in _GREY else "I").convert("I")
    wide = wide if wide.size == size else wide.resize(size)
    return (np.asarray(wide, np.float32) / white).clip(0, 1)[None]


def _common_form(files: list[Path], resize: int | None) -> tuple[tuple[int, int], str]:
    """The one size of all images, and how they are read: grey only if every one is; reads no more than their heads."""
    size = None if resize is None else (resize, resize)
    modes: dict[str, Path] = {}
    for path in files:
        with _open(path) as image:
            size = size or image.size
            if image.size != size and resize is None:
                raise DataError(
                    f"{path}: {image.size[0]}×{image.size[1]} pixels where {files[0].name} has {size[0]}×{size[1]}; "
                    "all images must have one size, or be resized (resize = 32)"
                )
            modes.setdefault(image.mode, path)
    mode = common_mode(modes)
    if mode is None:
        odd = next(path for name, path in modes.items() if name not in _GREY and name != "RGB")
        raise DataError(f"{odd}: {TOO_DEEP}")
    assert size is not None
    return size, mode


def _pixels(path: Path, size: tuple[int, int], mode: str) -> NDArray[Any]:
    with _open(path) as image:
        try:
            return pixels_of(image, size, mode)
        except Exception:  # there are as many ways to stumble over a damaged image as there are formats
            raise DataError(f"{path}: damaged or cut short") from None


def _open(path: Path) -> Any:
    """An image of which only the head was read; one that claims far more pixels than an image has is refused."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(path)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{path}: more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller first") from None
    except Exception:  # as above
        raise DataError(f"{path}: no image, or a damaged one") from None
