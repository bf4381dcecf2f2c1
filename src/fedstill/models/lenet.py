"""LeNet-5 (LeCun et al., 1998) as FedKF's authors use it."""

import torch
from torch import Tensor, nn

from fedstill.models.classifier import Network, Shape
from fedstill.models.pooled import applies, in_images, in_rows, pooled
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


@models.register("lenet5-gemm")
class LeNet5Gemm(Network):
    """LeNet-5, its convolutions and pooling as matrix products: faster on a CPU, the same but for the last bits.

    Weights are those of `lenet5`, under the same names. Elsewhere than on a CPU, with noise for each sample and when
    exported, its layers are called as those of `lenet5` are.
    """

    layout = torch.channels_last
    pixels = (28, 32)
    layers = LeNet5.layers

    def chain(self) -> tuple[nn.Module, ...]:
        """The body, then the head."""
        return self.body, self.head

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, 120) of the images x."""
        first, _, _, second, _, _, *rest = self.body.children()
        if type(first) is not nn.Conv2d or type(second) is not nn.Conv2d or not applies(x, self.body):
            return super().features(x)
        vectors = in_images(pooled(pooled(in_rows(x, int(first.padding[0])), first), second))
        for layer in rest:
            vectors = layer(vectors)
        return vectors
