"""How initial weights are drawn: from a seed, and never from the global random state."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, PyTorch draws from `seed`; afterwards the global random state is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def he_normal(module: nn.Module) -> None:
    """Draw every convolution's weights from N(0, 2 / (k² · outputs)), as FedKF's and DaFKD's authors do."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
