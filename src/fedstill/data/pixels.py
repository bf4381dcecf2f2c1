"""What only images have: a size in pixels that a model may ask for."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.data.kinds.image import Image
from fedstill.data.samples import Dataset, Samples


def brought_to(x: Tensor, kind: Kind, pixels: tuple[int, ...] | None, black: float = 0) -> Tensor:
    """Stored samples `x` of a kind; images in a size that the model takes (`pixels`; None: any).

    28×28 gets a border of `black` to 32×32, of 8×8 every pixel is repeated to 32×32. What is no image stays as it is.
    """
    if not isinstance(kind, Image) or pixels is None:
        return x
    _, height, width = kind.shape
    if height == width and height in pixels:
        return x
    if 32 in pixels and (height, width) == (28, 28):
        return F.pad(x, (2, 2, 2, 2), value=black)
    if 32 in pixels and (height, width) == (8, 8):
        return x.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    sizes = " or ".join(f"{p}×{p}" for p in pixels)
    brought = " (28×28 and 8×8 are brought to 32×32)" if 32 in pixels else ""
    raise UsageError(f"images of {height}×{width} pixels: the model takes {sizes}{brought}; resize them first")


def fit(samples: Samples, pixels: tuple[int, ...] | None, black: float = 0) -> Samples:
    """Samples in a size that the model takes; see `brought_to`."""
    x = brought_to(samples.x, samples.kind, pixels, black)
    if x is samples.x or not isinstance(samples.kind, Image):
        return samples
    return replace(samples, x=x, kind=replace(samples.kind, shape=tuple(x.shape[1:])))


def fitted(dataset: Dataset, pixels: tuple[int, ...] | None) -> Dataset:
    """The data set in an image size that the model takes; see `fit`."""
    if not isinstance(dataset.kind, Image) or pixels is None:
        return dataset
    black = 0 if dataset.train.x.dtype == torch.uint8 else dataset.train.x.min().item()
    test = None if dataset.test is None else fit(dataset.test, pixels, black)
    return replace(dataset, train=fit(dataset.train, pixels, black), test=test)
