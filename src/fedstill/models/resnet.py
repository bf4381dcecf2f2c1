"""Residual networks for small images (He et al., 2016), with batch or group normalisation.

All have a 3×3 stem, of stride 1 unless `pooled`; every stage after the first halves the image; the features are the
mean over the last image. A stage that would leave a single pixel does not halve: normalised channel by channel, one
pixel is a constant. Convolutions start from He's normal weights.

With BatchNorm, running means and variances are buffers: they travel and are averaged with the weights. GroupNorm has
one channel per group and no buffers.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fedstill.models.classifier import Network, Shape
from fedstill.models.registry import models
from fedstill.models.weights import he_normal


class Residual(nn.Module):
    """relu(path(x) + shortcut(x)) (final)."""

    def __init__(self, path: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.path = path
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        total: Tensor = self.path(x) + self.shortcut(x)
        return total.relu_()


class Mean(nn.Module):
    """The mean over the pixels of each channel (final)."""

    def forward(self, x: Tensor) -> Tensor:
        """Images to vectors."""
        return x.mean((2, 3))


class ResNet(Network):
    """Stem, stages of residual blocks, mean over the image, one linear layer."""

    widths: ClassVar[tuple[int, ...]]
    blocks: ClassVar[int] = 1
    """Blocks in a stage."""
    expansion: ClassVar[int] = 1
    """1: basic blocks of two 3×3 convolutions; 4: bottlenecks of 1×1, 3×3 and 1×1 to four times the width."""
    batch_norm: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    """The stem halves the image twice, by its stride and by max-pooling, as the paper's does for large images."""

    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """The stages as one sequence; the features are as wide as its last block."""
        channels, side = self.widths[0], min(shape[1:])
        body = self._convolution(shape[0], channels, 3, 2 if self.pooled else 1)
        if self.pooled:
            body.append(nn.MaxPool2d(3, 2, 1))  # before ReLU: the same numbers, a quarter of the work
            side = -(-side // 4)
        body.append(nn.ReLU(inplace=True))
        for stage, width in enumerate(self.widths):
            halve = stage > 0 and side > 2
            side = -(-side // 2) if halve else side
            for block in range(self.blocks):
                body.append(self._block(channels, width, 2 if halve and block == 0 else 1))
                channels = width * self.expansion
        network = nn.Sequential(*body, Mean())
        he_normal(network)
        return network, nn.Linear(channels, classes)

    def _block(self, inputs: int, width: int, stride: int) -> Residual:
        outputs = width * self.expansion
        if self.expansion == 1:
            plan = [(inputs, width, 3, stride), (width, width, 3, 1)]
        else:
            plan = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        path: list[nn.Module] = []
        for row in plan:
            path += [*self._convolution(*row), nn.ReLU(inplace=True)]
        same = stride == 1 and inputs == outputs
        shortcut = [nn.Identity()] if same else self._convolution(inputs, outputs, 1, stride)
        return Residual(nn.Sequential(*path[:-1]), nn.Sequential(*shortcut))

    def _convolution(self, inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
        norm = nn.BatchNorm2d(outputs) if self.batch_norm else nn.GroupNorm(outputs, outputs)
        return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), norm]


@models.register("resnet8")
class ResNet8(ResNet):
    """FedKF's ResNet-8, as wide as in its authors' code: three basic blocks of 64, 128, 256; GroupNorm."""

    widths = (64, 128, 256)


@models.register("resnet8-slim")
class ResNet8Slim(ResNet):
    """ResNet-8 with blocks of 16, 32, 64; GroupNorm."""

    widths = (16, 32, 64)


@models.register("resnet8-slim-bn")
class ResNet8SlimBatchNorm(ResNet):
    """ResNet-8 with blocks of 16, 32, 64; BatchNorm, whose buffers are averaged too."""

    layout = torch.channels_last
    widths = (16, 32, 64)
    batch_norm = True


@models.register("resnet8-pooled-bn")
class ResNet8PooledBatchNorm(ResNet):
    """`resnet8-slim-bn` behind a stem that halves the image twice: a tenth of the time at 32 pixels."""

    layout = torch.channels_last
    widths = (16, 32, 64)
    batch_norm = True
    pooled = True


@models.register("resnet11")
class ResNet11(ResNet):
    """DaFKD's ResNet-11: a bottleneck each of 16, 32, 64, 256 features; BatchNorm, whose buffers are averaged too."""

    layout = torch.channels_last
    widths = (16, 32, 64)
    expansion = 4
    batch_norm = True


@models.register("resnet11-gn")
class ResNet11GroupNorm(ResNet):
    """ResNet-11 with GroupNorm."""

    widths = (16, 32, 64)
    expansion = 4


@models.register("resnet18")
class ResNet18(ResNet):
    """FedRAD's ResNet-18: pairs of basic blocks of 64, 128, 256, 512; BatchNorm, whose buffers are averaged too."""

    layout = torch.channels_last
    widths = (64, 128, 256, 512)
    blocks = 2
    batch_norm = True


@models.register("resnet18-gn")
class ResNet18GroupNorm(ResNet):
    """ResNet-18 with GroupNorm."""

    widths = (64, 128, 256, 512)
    blocks = 2
