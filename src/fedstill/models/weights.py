"""How initial weights are drawn where PyTorch's own way is not the papers'."""

from torch import nn


def he_normal(module: nn.Module) -> None:
    """Draw every convolution's weights from N(0, 2 / (k² · outputs)), as FedKF's and DaFKD's authors do."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
