"""Networks for series (channels × time): a small convolutional one, and one after InceptionTime.

Both normalise by groups of channels, which needs no other sample and has no buffers: clients may differ.
"""

import torch
from torch import Tensor, nn

from fedstill.models.classifier import Network, Shape
from fedstill.models.registry import models


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


class OverTime(nn.Module):
    """The mean over time of each channel (final)."""

    def forward(self, x: Tensor) -> Tensor:
        """Series to vectors."""
        return x.mean(2)


@models.register("cnn1d")
class CNN1d(Network):
    """Three 1-D convolutions (32 of 7, 64 of 5, 64 of 3), the first two halved in time; features: means over time."""

    takes = ("series",)

    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """A series of one step is as good as any: halving stops there."""
        body: list[nn.Module] = []
        inputs, length = shape
        for outputs, size in ((32, 7), (64, 5), (64, 3)):
            body += [nn.Conv1d(inputs, outputs, size, padding=size // 2), _norm(outputs), nn.ReLU()]
            if outputs != inputs and length >= 2:
                body.append(nn.MaxPool1d(2))
                length //= 2
            inputs = outputs
        return nn.Sequential(*body, OverTime()), nn.Linear(inputs, classes)


class Inception(nn.Module):
    """A bottleneck of 1, then convolutions of three lengths and a pooled way, side by side (final)."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(inputs, filters, 1, bias=False)
        self.ways = nn.ModuleList(nn.Conv1d(filters, filters, n, padding=n // 2, bias=False) for n in (9, 19, 39))
        self.pooled = nn.Sequential(nn.MaxPool1d(3, stride=1, padding=1), nn.Conv1d(inputs, filters, 1, bias=False))
        self.norm = _norm(4 * filters)

    def forward(self, x: Tensor) -> Tensor:
        """All ways, one after the other in channels."""
        narrow = self.bottleneck(x)
        wide: Tensor = self.norm(torch.cat([*(way(narrow) for way in self.ways), self.pooled(x)], 1))
        return wide


class InceptionResidual(nn.Module):
    """Three inception blocks and the way around them (final)."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__()
        widths = (inputs, 4 * filters, 4 * filters)
        blocks = [nn.Sequential(Inception(width, filters), nn.ReLU()) for width in widths]
        self.path = nn.Sequential(*blocks[:-1], blocks[-1][0])
        self.shortcut = nn.Sequential(nn.Conv1d(inputs, 4 * filters, 1, bias=False), _norm(4 * filters))

    def forward(self, x: Tensor) -> Tensor:
        """relu(path(x) + shortcut(x))."""
        total: Tensor = self.path(x) + self.shortcut(x)
        return total.relu()


@models.register("inception")
class InceptionTime(Network):
    """After InceptionTime (Fawaz et al., 2020): one of its residual groups, 16 filters a way, one network not five."""

    takes = ("series",)

    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """Kernels of 9, 19 and 39, the odd ones nearest to the paper's 10, 20 and 40."""
        return nn.Sequential(InceptionResidual(shape[0], 16), OverTime()), nn.Linear(64, classes)
