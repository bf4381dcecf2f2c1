"""A small fully connected network."""

from math import prod

from torch import nn

from fedstill.models.classifier import Network, Shape
from fedstill.models.registry import models


@models.register("mlp")
class MLP(Network):
    """One hidden layer of 64, whose outputs are the features: for 8×8 digits, tables and quick trials."""

    takes = ("image", "series", "table", "plain")
    smallest = 1

    def layers(self, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
        """Flatten, 64 with ReLU; then the classes."""
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU()), nn.Linear(64, classes)

    def chain(self) -> tuple[nn.Module, ...]:
        """The body, then the head."""
        return self.body, self.head
