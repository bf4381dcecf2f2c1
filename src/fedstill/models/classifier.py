"""What every method expects of a model: `logits(x) = head(features(x))`."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedstill.core.errors import UsageError

Shape = tuple[int, int, int]
"""Channels, height, width of one image."""


class Classifier(nn.Module, ABC):
    """Images in, logits out, by way of a feature vector."""

    layout: ClassVar[torch.memory_format] = torch.contiguous_format
    """The memory layout it computes in. It changes speed and last bits, so each model fixes its own."""
    pixels: ClassVar[tuple[int, ...] | None] = None
    """The image sides it takes; None: any from `smallest`."""
    smallest: ClassVar[int] = 8

    head: nn.Module
    """Maps feature vectors to logits."""
    width: int
    """The size of a feature vector."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, width) of the images x."""

    def logits(self, x: Tensor) -> Tensor:
        """The logits (batch, classes) of the images x."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """The logits of x."""
        return self.logits(x)


class Network(Classifier):
    """An architecture of this package: a body that ends in feature vectors, then a head."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self._check(shape)
        self.body, self.head = self.layers(shape, classes)
        self.width = next(layer.in_features for layer in self.head.modules() if isinstance(layer, nn.Linear))
        self.to(memory_format=self.layout)  # type: ignore[call-overload]  # torch's stub lacks it

    @abstractmethod
    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """The body and the head for images of this shape."""

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, width) of the images x."""
        features: Tensor = self.body(arrange(x, self.layout))
        return features

    def _check(self, shape: Shape) -> None:
        _, height, width = shape
        if self.pixels is None:
            fits, allowed = min(height, width) >= self.smallest, f"at least {self.smallest} × {self.smallest}"
        else:
            fits = height == width and height in self.pixels
            allowed = " or ".join(f"{side} × {side}" for side in self.pixels)
        if not fits:
            raise UsageError(f"takes images of {allowed} pixels, data have {height} × {width}")


def arrange(x: Tensor, layout: torch.memory_format) -> Tensor:
    """The images x in a memory layout, by views and at most one copy: vmap knows no memory formats.

    Strides are made afresh, as those of an image of one channel fit both layouts: PyTorch would then take the layout
    of the weights, and weights that came off a wire or a disk would give other bits than those that stayed.
    """
    if layout is torch.channels_last:
        batch, channels, height, width = x.shape
        return x.permute(0, 2, 3, 1).flatten(1).view(batch, height, width, channels).permute(0, 3, 1, 2)
    return x.contiguous()
