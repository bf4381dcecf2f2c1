"""Image folders: `train/<class>/*.png` with an optional `test/<class>/…`, or `<class>/*.png` alone."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.data.arrays import dataset
from fedstill.data.samples import Dataset

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_GREY = {"1", "L"}


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


def _common_form(files: list[Path], resize: int | None) -> tuple[tuple[int, int], str]:
    """The one size of all images, and grey only if every image is; reads no more than their heads."""
    size, mode = None if resize is None else (resize, resize), "L"
    for path in files:
        with _open(path) as image:
            size = size or image.size
            if image.size != size and resize is None:
                raise DataError(
                    f"{path}: {image.size[0]}×{image.size[1]} pixels where {files[0].name} has {size[0]}×{size[1]}; "
                    "all images must have one size, or be resized (resize = 32)"
                )
            mode = mode if image.mode in _GREY else "RGB"
    assert size is not None
    return size, mode


def _pixels(path: Path, size: tuple[int, int], mode: str) -> NDArray[np.uint8]:
    with _open(path) as image:
        try:
            image = image if image.size == size else image.convert(mode).resize(size)
            return np.asarray(image.convert(mode), np.uint8).reshape(size[1], size[0], -1).transpose(2, 0, 1)
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
