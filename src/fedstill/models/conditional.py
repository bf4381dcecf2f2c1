"""Generators that are told a label: of samples of any kind (DaFKD, FedFTG) and of feature vectors (FedGen).

All are called as `generator(z, y)` with noise (batch, noise) and class numbers (batch,).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedstill.core.classifier import Classifier
from fedstill.core.kind import Kind
from fedstill.models.finish import finish
from fedstill.models.generator import Generator, build_generator


class EmbeddingGenerator(nn.Module):
    """DaFKD 4.1: embeddings of label and noise, then fully connected layers with BatchNorm and LeakyReLU (final).

    The widths are ours: two embeddings of `width`, a hidden layer of four times that, and the sample.
    """

    def __init__(self, kind: Kind, classes: int, noise: int, width: int = 64) -> None:
        super().__init__()
        self.shape = kind.imagined_shape
        self.label = nn.Embedding(classes, width)
        self.noise = nn.Linear(noise, width)
        self.body = nn.Sequential(
            nn.LeakyReLU(0.2),
            nn.Linear(2 * width, 4 * width),
            nn.BatchNorm1d(4 * width),
            nn.LeakyReLU(0.2),
            nn.Linear(4 * width, kind.width),
        )
        self.finish = finish(kind)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Samples of the noise z for the labels y, normalised as the data are."""
        raw: Tensor = self.body(torch.cat([self.label(y), self.noise(z)], 1))
        samples: Tensor = self.finish(raw.view(-1, *self.shape))
        return samples


class LabelledGenerator(nn.Module):
    """Any registered generator, told the label as a one-hot vector beside the noise (final).

    With no classes it is not told the label at all.
    """

    def __init__(self, generator: Generator, classes: int) -> None:
        super().__init__()
        self.image = generator
        self.classes = classes

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Samples of the noise z for the labels y."""
        labelled = torch.cat([z, one_hot(y, self.classes).to(z.dtype)], 1) if self.classes else z
        samples: Tensor = self.image(labelled)
        return samples


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


def build_conditional(name: str, kind: Kind, classes: int, noise: int, channels: int | None = None) -> nn.Module:
    """`embedding`, or a registered generator that is told the label; `classes` = 0: told nothing."""
    if name == "embedding":
        return EmbeddingGenerator(kind, classes, noise)
    return LabelledGenerator(build_generator(name, kind, noise + classes, channels), classes)


def feature_width(module: Classifier, kind: Kind) -> int:
    """How long the module's feature vectors are, found by a trial; a module without features says so."""
    mode = module.training
    module.eval()
    device = next(module.parameters()).device
    with torch.no_grad():
        features = module.features(kind.noise(1, torch.Generator()).to(device))
    module.train(mode)
    return features.shape[1]
