"""What the architectures of this package share: layouts of memory, sides of images, kinds of data."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind, sides
from fedstill.core.registry import Registry
from fedstill.data.kinds import Image, Plain, Series

Shape = tuple[int, ...]
"""Of one input: channels, height, width of an image; channels, time of a series; …"""


def as_kind(what: Kind | Shape) -> Kind:
    """A kind as it is; of a shape alone, images for three sides, series for two, plain arrays for the rest."""
    if isinstance(what, Kind):
        return what
    return Image(what) if len(what) == 3 else Series(what) if len(what) == 2 else Plain(what)


class Network(Classifier):
    """An architecture of this package that asks for the shape of inputs alone: a body, then a head."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        if len(shape) == 3:
            self._check_sides(shape)
        self.body, self.head = self.layers(shape, classes)
        self.width = next(layer.in_features for layer in self.head.modules() if isinstance(layer, nn.Linear))
        self.to(memory_format=self.layout)  # type: ignore[call-overload]  # torch's stub lacks it

    @abstractmethod
    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """The body and the head for inputs of this shape."""

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, width) of the inputs x."""
        features: Tensor = self.body(arrange(x, self.layout))
        return features

    def _check_sides(self, shape: Shape) -> None:
        _, height, width = shape
        if self.pixels is None:
            fits, allowed = min(height, width) >= self.smallest, f"at least {self.smallest} × {self.smallest}"
        else:
            fits = height == width and height in self.pixels
            allowed = " or ".join(f"{side} × {side}" for side in self.pixels)
        if not fits:
            raise UsageError(f"takes images of {allowed} pixels, data have {height} × {width}")


def embedded(module: nn.Module, x: Tensor) -> Tensor:
    """Inputs as a generator would make them, by the module's own embedding where it has one."""
    return module.embed(x) if isinstance(module, Classifier) else x


def refuse_other_kinds(model: type[Classifier], kind: Kind, known: "Registry[type[Classifier]]") -> None:
    """Refuse a model for another kind of data, naming those that fit."""
    name = Registry.name_of(type(kind))
    if name not in model.takes:
        fitting = [other for other in known if name in known[other].takes]
        raise UsageError(
            f"is not for {name} data ({kind.plural} of {sides(kind.shape)}); fitting: {', '.join(fitting)}"
        )


def arrange(x: Tensor, layout: torch.memory_format) -> Tensor:
    """The images x in a memory layout, by views and at most one copy: vmap knows no memory formats.

    Strides are made afresh, as those of an image of one channel fit both layouts: PyTorch would then take the layout
    of the weights, and weights that came off a wire or a disk would give other bits than those that stayed.
    """
    if layout is torch.channels_last:
        batch, channels, height, width = x.shape
        return x.permute(0, 2, 3, 1).flatten(1).view(batch, height, width, channels).permute(0, 3, 1, 2)
    return x.contiguous()
