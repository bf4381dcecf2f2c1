"""Ten small networks that differ, as torch modules: two of each of five."""

import torch
from torch import nn


def network(kind: int) -> nn.Module:
    """Convolutions of 3 × 3, each halved by max-pooling, then a hidden layer; five sizes."""
    widths, hidden = [((16, 32), 64), ((32, 64), 64), ((16, 32), 128), ((8, 16), 64), ((32, 32), 128)][kind]
    layers: list[nn.Module] = []
    before = 1
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * 49, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def networks(count: int) -> list[nn.Module]:
    """So many networks, in pairs of the same architecture, each with weights of its own."""
    torch.manual_seed(1)
    return [network(place // 2 % 5) for place in range(count)]


def first() -> nn.Module:
    """For `contestants.models:first`."""
    return network(0)


def second() -> nn.Module:
    """For `contestants.models:second`."""
    return network(1)


def third() -> nn.Module:
    """For `contestants.models:third`."""
    return network(2)


def fourth() -> nn.Module:
    """For `contestants.models:fourth`."""
    return network(3)


def fifth() -> nn.Module:
    """For `contestants.models:fifth`."""
    return network(4)
