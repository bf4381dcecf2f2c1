"""The last step of every generator: from any numbers to inputs of a kind, in the range of the data."""

import torch
from torch import Tensor, nn

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.data.kinds import Image, Plain, Series, Table, Tokens

REACH = 4.0
"""Generated numbers stay within so many deviations of the mean."""


class Pixels(nn.Module):
    """0 … 1 by a sigmoid, then normalised as the data are (final)."""

    mean: Tensor
    std: Tensor

    def __init__(self, kind: Image) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(kind.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(kind.std).view(-1, 1, 1), persistent=False)

    def forward(self, raw: Tensor) -> Tensor:
        """The images of any numbers."""
        return (torch.sigmoid(raw) - self.mean) / self.std


class Bounded(nn.Module):
    """Nearly the numbers themselves around 0, never beyond `REACH` (final)."""

    def forward(self, raw: Tensor) -> Tensor:
        """4 tanh(x/4)."""
        return REACH * torch.tanh(raw / REACH)


class Rows(nn.Module):
    """Numbers bounded, marks of missing values from 0 to 1, a soft choice in every block of categories (final)."""

    def __init__(self, kind: Table) -> None:
        super().__init__()
        self.parts = [len(kind.numeric), len(kind.missing), *kind.blocks]

    def forward(self, raw: Tensor) -> Tensor:
        """The rows of any numbers."""
        numbers, marks, *blocks = torch.split(raw, self.parts, 1)
        chosen = [block.softmax(1) for block in blocks]
        return torch.cat([REACH * torch.tanh(numbers / REACH), torch.sigmoid(marks), *chosen], 1)


def finish(kind: Kind) -> nn.Module:
    """The last step of a generator of this kind."""
    match kind:
        case Image():
            return Pixels(kind)
        case Table():
            return Rows(kind)
        case Series() | Tokens() | Plain():
            return Bounded()
    raise UsageError(f"generator: nothing generates {kind.plural}")
