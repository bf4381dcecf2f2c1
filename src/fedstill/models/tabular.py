"""A residual network for tables, with an embedding for every category.

The inputs are those of `data.kinds.Table`: numbers, marks of missing values, and a block for every column of
categories. An embedding is a matrix times the block, so that a generator's soft choice has an embedding too.
"""

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.data.kinds import Table
from fedstill.models.registry import models

HIDDEN = 64


class Block(nn.Module):
    """x + W₂ relu(W₁ norm(x)) (final)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.path = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        total: Tensor = x + self.path(x)
        return total


@models.register("tabresnet")
class TabularResNet(Classifier):
    """Embeddings of categories beside the numbers, then two residual blocks of 64; after Gorishniy et al. (2021)."""

    takes = ("table",)

    def __init__(self, kind: Table, classes: int) -> None:
        super().__init__()
        self.numbers = len(kind.numeric) + len(kind.missing)
        self.blocks = list(kind.blocks)
        sizes = [min(16, (count + 3) // 2) for count in self.blocks]
        self.embeddings = nn.ModuleList(
            nn.Linear(count, size, bias=False) for count, size in zip(self.blocks, sizes, strict=True)
        )
        for embedding in self.embeddings.children():
            nn.init.normal_(embedding.weight, 0, 0.5)  # type: ignore[arg-type]  # each is a Linear
        first = nn.Linear(self.numbers + sum(sizes), HIDDEN)
        self.body = nn.Sequential(first, Block(HIDDEN), Block(HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, classes)
        self.width = HIDDEN

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, 64) of the rows x."""
        numbers, *choices = torch.split(x, [self.numbers, *self.blocks], 1)
        embedded = [embedding(choice) for embedding, choice in zip(self.embeddings, choices, strict=True)]
        features: Tensor = self.body(torch.cat([numbers, *embedded], 1))
        return features
