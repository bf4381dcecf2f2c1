"""LeNet-5 (LeCun et al., 1998) as FedKF's authors use it."""

import torch
from torch import nn

from fedstill.models.classifier import Network, Shape
from fedstill.models.registry import models


@models.register("lenet5")
class LeNet5(Network):
    """LeNet-5 with ReLU and max-pooling; features are the 120 outputs of the last convolution."""

    layout = torch.channels_last
    pixels = (28, 32)

    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """Three 5×5 convolutions (6, 16, 120), then fully connected 84 and classes."""
        channels, side, _ = shape
        body = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=(32 - side) // 2),
            nn.MaxPool2d(2),  # before ReLU: the same numbers, a quarter of the work
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),  # the third 5×5 convolution sees exactly 5×5: the same numbers, faster
            nn.ReLU(),
        )
        return body, nn.Sequential(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes))
