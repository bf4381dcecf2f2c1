"""The five client networks of FedTKD (table 1).

Conv-1 is one 3×3 convolution to 16 channels; Conv-2 to Conv-6 are pairs of 3×3 convolutions, each pair followed by a
2×2 max-pool; then two fully connected layers, the first of which gives the features. The printed table has slips
(Conv-5 repeats Conv-4, Conv-6 reads "54"); the widths here are those with which its fully connected inputs fit at 32
pixels. There is no normalisation in the table, and none here; so convolutions start from He's normal weights (ours):
from PyTorch's default ones eleven layers shrink the image to nothing, and three epochs on 4,000 digits end below 42 %
instead of above 94 %.
"""

from typing import ClassVar

import torch
from torch import nn

from fedstill.models.classifier import Network, Shape
from fedstill.models.registry import models
from fedstill.models.weights import he_normal

Pair = tuple[int, int]


class CNN(Network):
    """Pairs of convolutions and two fully connected layers, by a row of the table."""

    layout = torch.channels_last
    pixels = (28, 32)
    pairs: ClassVar[tuple[Pair, ...]]
    connected: ClassVar[int]

    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """The row's convolutions, pooled to 32 / 2^pairs pixels, and its fully connected layers."""
        width, side, _ = shape
        body: list[nn.Module] = [nn.Conv2d(width, 16, 3, padding=1 + (32 - side) // 2), nn.ReLU()]
        width = 16
        for middle, out in self.pairs:
            body += [nn.Conv2d(width, middle, 3, padding=1), nn.ReLU()]
            body += [nn.Conv2d(middle, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            width = out
        last = 32 // 2 ** len(self.pairs)
        body += [nn.Flatten(), nn.Linear(width * last**2, self.connected), nn.ReLU()]
        network = nn.Sequential(*body)
        he_normal(network)
        return network, nn.Linear(self.connected, classes)


@models.register("cnn1")
class CNN1(CNN):
    """FedTKD's clients 1, 2, 11, 16 and its server: eleven convolutions."""

    pairs = ((16, 16), (32, 32), (64, 64), (128, 128), (256, 512))
    connected = 512


@models.register("cnn2")
class CNN2(CNN):
    """FedTKD's clients 3, 4, 12, 17: eleven convolutions, narrower at the end."""

    pairs = ((16, 16), (32, 32), (64, 64), (128, 128), (256, 256))
    connected = 256


@models.register("cnn3")
class CNN3(CNN):
    """FedTKD's clients 5, 6, 13, 18: nine convolutions."""

    pairs = ((16, 16), (32, 32), (64, 64), (128, 128))
    connected = 128


@models.register("cnn4")
class CNN4(CNN):
    """FedTKD's clients 7, 8, 14, 19: seven convolutions."""

    pairs = ((16, 16), (32, 32), (64, 64))
    connected = 128


@models.register("cnn5")
class CNN5(CNN):
    """FedTKD's clients 9, 10, 15, 20: seven convolutions, wider at the end."""

    pairs = ((16, 16), (32, 32), (64, 128))
    connected = 256
