"""Generators of images from noise, for distillation without data; `build_generator` finds those of all kinds."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.registry import Registry
from fedstill.data.kinds import Image
from fedstill.models.classifier import Shape, arrange
from fedstill.models.registry import generators, generators_by_kind
from fedstill.models.weights import he_normal


def build_generator(name: str, kind: Kind, noise: int, channels: int | None = None) -> "Generator":
    """The generator registered as `name`: `noise` numbers in, inputs of this kind out, normalised as the data are.

    `light` has a form for every kind of data; the others make images.
    """
    make = generators[name]
    if not isinstance(kind, Image):
        if name != "light":
            raise UsageError(f"generator = {name!r}: makes images, data are {kind.plural}; use light")
        make = generators_by_kind[Registry.name_of(type(kind))]
    try:
        generator: Generator = make(kind, noise, channels)
    except UsageError as problem:
        raise UsageError(f"generator = {name!r}: {problem}") from problem
    return generator


class Generator(nn.Module, ABC):
    """Noise (batch, noise) to samples (batch, *kind.imagined_shape) that a classifier takes for the data set's."""

    channels: ClassVar[int]
    """Its usual width."""
    lr: ClassVar[float] = 1e-3
    """The rate at which it learns well from a frozen teacher, by Adam."""

    def __init__(self, noise: int, channels: int | None) -> None:
        super().__init__()
        self.wide = self.channels if channels is None else channels
        if noise < 1 or self.wide < 2:
            raise UsageError(f"noise must be ≥ 1 and channels ≥ 2, got {noise} and {self.wide}")
        self.noise = noise

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """The samples of the noise z, normalised as the data are."""


class ImageGenerator(Generator, ABC):
    """Noise to images."""

    mean: Tensor
    std: Tensor

    def __init__(self, kind: Image, noise: int, channels: int | None = None) -> None:
        super().__init__(noise, channels)
        shape, mean, std = kind.shape, kind.mean, kind.std
        if any(side % 4 for side in shape[1:]):
            raise UsageError(f"makes images whose sides are multiples of 4, data have {shape[1]} × {shape[2]}")
        if not len(mean) == len(std) == shape[0]:
            raise UsageError(f"needs one mean and std for each of {shape[0]} channels, got {len(mean)} and {len(std)}")
        self.register_buffer("mean", torch.tensor(list(mean), dtype=torch.float32).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std), dtype=torch.float32).view(-1, 1, 1), persistent=False)
        self.body = nn.Sequential(*self.layers(shape, noise, self.wide))

    @abstractmethod
    def layers(self, shape: Shape, noise: int, channels: int) -> list[nn.Module]:
        """The layers up to the sigmoid."""

    def forward(self, z: Tensor) -> Tensor:
        """The images of the noise z: 0 … 1 by a sigmoid, then normalised as the data are."""
        images: Tensor = (torch.sigmoid(self.body(z)) - self.mean) / self.std
        return images


class Project(nn.Module):
    """A linear layer from noise to a small image of many channels, which fixes the layout of what follows (final)."""

    def __init__(self, noise: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.small = (channels, height, width)
        self.linear = nn.Linear(noise, channels * height * width)

    def forward(self, z: Tensor) -> Tensor:
        """The small images of the noise z."""
        return arrange(self.linear(z).view(-1, *self.small), torch.channels_last)


def normalise(channels: int) -> list[nn.Module]:
    """BatchNorm with DAFL's eps .8, and LeakyReLU."""
    return [nn.BatchNorm2d(channels, eps=0.8), nn.LeakyReLU(0.2, inplace=True)]


MERGE_SIDE = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
"""(a, b, c) to (c, b+c, a+b, a)."""
MERGE = torch.kron(MERGE_SIDE, MERGE_SIDE).T.contiguous()
"""The same along both sides: nine taps to sixteen."""


class UpsampledConv2d(nn.Conv2d):
    """A 3×3 convolution of the image enlarged twice (nearest neighbour), in 4/9 of the multiply-adds (final).

    Of the nine taps on the enlarged image several fall on the same pixel, so their weights can be added first. Along
    one side, with taps a b c, output 2i is a·x[i−1] + (b+c)·x[i] and output 2i+1 is (a+b)·x[i] + c·x[i+1]: a transposed
    convolution of stride 2 with kernel (c, b+c, a+b, a), the borders included. The parameters stay the 3×3 kernel.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of the enlarged image."""
        kernel = (self.weight.flatten(2) @ MERGE.to(self.weight)).view(*self.weight.shape[:2], 4, 4)
        return doubled(input, kernel.transpose(0, 1), self.bias)


class DoublingConv2d(nn.ConvTranspose2d):
    """A transposed convolution of 4×4 and stride 2: twice the size (final)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, 4, stride=2, padding=1, bias=bias)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The image of twice the size."""
        return doubled(input, self.weight, self.bias)


class NarrowConv2d(nn.Conv2d):
    """A 3×3 convolution to few channels (final)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution; a tap that reads from the left adds to the right, so taps are flipped."""
        return scattered(input, self.weight.flip(2, 3).transpose(0, 1), self.bias, stride=1)


FEW = 4
"""So many channels or fewer are scattered."""


def doubled(images: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """The transposed convolution of 4×4 and stride 2; its kernel is slow where channels are few, and at the bias."""
    if kernel.shape[1] <= FEW:
        return scattered(images, kernel, bias, stride=2)
    return biased(F.conv_transpose2d(images, kernel, stride=2, padding=1), bias)


def scattered(images: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """A transposed convolution with padding 1: all taps' products in one go, then each is added where it belongs."""
    taps = kernel.flatten(1).T[:, :, None, None]
    size = tuple((side - 1) * stride - 2 + kernel.shape[-1] for side in images.shape[2:])
    return biased(F.fold(F.conv2d(images, taps).flatten(2), size, kernel.shape[2:], padding=1, stride=stride), bias)


def biased(images: Tensor, bias: Tensor | None) -> Tensor:
    """The images, with the bias added to each channel in place."""
    return images if bias is None else images.add_(bias.view(-1, 1, 1))


@generators.register("dafl")
class Dafl(ImageGenerator):
    """DAFL's generator (Chen et al., 2019) as FedKF's authors use it: two upsampled convolutions and a last one."""

    channels = 128

    def layers(self, shape: Shape, noise: int, channels: int) -> list[nn.Module]:
        """A quarter of the size, doubled twice, at `channels` and then half of them."""
        colours, height, width = shape
        half = channels // 2
        layers = [
            Project(noise, channels, height // 4, width // 4),
            nn.BatchNorm2d(channels),
            UpsampledConv2d(channels, channels),
            *normalise(channels),
            UpsampledConv2d(channels, half),
            *normalise(half),
            NarrowConv2d(half, colours),
        ]
        he_normal(nn.Sequential(*layers))
        return layers


@generators.register("light")
class Light(ImageGenerator):
    """Two transposed convolutions of 4×4: with 16 channels 1/267 of dafl's multiply-adds, with 64 1/24."""

    channels = 16
    lr = 0.02

    def layers(self, shape: Shape, noise: int, channels: int) -> list[nn.Module]:
        """A quarter of the size, doubled twice."""
        colours, height, width = shape
        return [
            Project(noise, channels, height // 4, width // 4),
            nn.BatchNorm2d(channels),
            DoublingConv2d(channels, channels),
            *normalise(channels),
            DoublingConv2d(channels, colours),
        ]


@generators.register("dcgan")
class Dcgan(ImageGenerator):
    """DCGAN's generator (Radford et al., 2016), begun as near to 4×4 as halving leads; `channels` in its last layer."""

    channels = 128

    def layers(self, shape: Shape, noise: int, channels: int) -> list[nn.Module]:
        """Transposed convolutions of 4×4, each with twice the size and half the channels of the one before."""
        colours, height, width = shape
        doublings = 0
        while min(height, width) > 4 and height % 2 == width % 2 == 0:
            height, width, doublings = height // 2, width // 2, doublings + 1
        channels *= 2 ** (doublings - 1)
        layers = [Project(noise, channels, height, width), nn.BatchNorm2d(channels), nn.ReLU()]
        for _ in range(doublings - 1):
            layers += [DoublingConv2d(channels, channels // 2, bias=False)]
            layers += [nn.BatchNorm2d(channels // 2), nn.ReLU()]
            channels //= 2
        layers.append(DoublingConv2d(channels, colours))
        for layer in layers:
            if isinstance(layer, nn.ConvTranspose2d | nn.Linear):
                nn.init.normal_(layer.weight, 0, 0.02)
            elif isinstance(layer, nn.BatchNorm2d):
                nn.init.normal_(layer.weight, 1, 0.02)
        return layers
