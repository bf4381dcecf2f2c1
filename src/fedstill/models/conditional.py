"""Generators that are told a label: of images (DaFKD, FedFTG) and of feature vectors (FedGen).

All are called as `generator(z, y)` with noise (batch, noise) and class numbers (batch,).
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedstill.models.classifier import Shape
from fedstill.models.generator import ImageGenerator, build_generator


class EmbeddingGenerator(nn.Module):
    """DaFKD 4.1: embeddings of label and noise, then fully connected layers with BatchNorm and LeakyReLU (final).

    The widths are ours: two embeddings of `width`, a hidden layer of four times that, and the image.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, shape: Shape, classes: int, noise: int, mean: Sequence[float], std: Sequence[float], width: int = 64
    ) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.label = nn.Embedding(classes, width)
        self.noise = nn.Linear(noise, width)
        self.body = nn.Sequential(
            nn.LeakyReLU(0.2),
            nn.Linear(2 * width, 4 * width),
            nn.BatchNorm1d(4 * width),
            nn.LeakyReLU(0.2),
            nn.Linear(4 * width, prod(shape)),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Images of the noise z for the labels y, normalised as the data are."""
        pixels: Tensor = self.body(torch.cat([self.label(y), self.noise(z)], 1))
        return (pixels.view(-1, *self.shape) - self.mean) / self.std


class LabelledGenerator(nn.Module):
    """Any registered image generator, told the label as a one-hot vector beside the noise (final).

    With no classes it is not told the label at all.
    """

    def __init__(self, image: ImageGenerator, classes: int) -> None:
        super().__init__()
        self.image = image
        self.classes = classes

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Images of the noise z for the labels y."""
        told = torch.cat([z, one_hot(y, self.classes).to(z.dtype)], 1) if self.classes else z
        images: Tensor = self.image(told)
        return images


class FeatureGenerator(nn.Module):
    """FedGen: [noise; one-hot label] to one hidden layer with BatchNorm and ReLU, to a feature vector (final)."""

    def __init__(self, width: int, classes: int, noise: int, hidden: int = 256) -> None:
        super().__init__()
        self.classes = classes
        self.body = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Feature vectors of the noise z for the labels y."""
        features: Tensor = self.body(torch.cat([z, one_hot(y, self.classes).to(z.dtype)], 1))
        return features


class EmbeddedFeatures(nn.Module):
    """FedGen as DaFKD and FedRAD use it: two embeddings, of noise and label, then two fully connected layers (final).

    Both hidden layers have LeakyReLU and BatchNorm.
    """

    def __init__(self, width: int, classes: int, noise: int, hidden: int = 256) -> None:
        super().__init__()
        self.label = nn.Embedding(classes, hidden)
        self.noise = nn.Linear(noise, hidden)
        self.body = nn.Sequential(
            nn.BatchNorm1d(2 * hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(2 * hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, width),
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Feature vectors of the noise z for the labels y."""
        features: Tensor = self.body(torch.cat([self.noise(z), self.label(y)], 1))
        return features


def build_conditional(
    name: str,
    shape: Shape,
    classes: int,
    noise: int,
    mean: Sequence[float],
    std: Sequence[float],
    channels: int | None = None,
) -> nn.Module:
    """`embedding`, or a registered image generator that is told the label; `classes` = 0: told nothing."""
    if name == "embedding":
        return EmbeddingGenerator(shape, classes, noise, mean, std)
    return LabelledGenerator(build_generator(name, shape, noise + classes, mean, std, channels), classes)


def feature_width(module: nn.Module, shape: Shape) -> int:
    """How long the module's feature vectors are, found by a trial; a module without features says so."""
    mode = module.training
    module.eval()
    device = next(module.parameters()).device
    with torch.no_grad():
        features: Tensor = module.features(torch.zeros(1, *shape, device=device))  # type: ignore[operator]
    module.train(mode)
    return features.shape[1]
