"""Plain arrays of any shape: numbers with one mean and one deviation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.kind import Kind, kinds, sides
from fedstill.core.value import setting
from fedstill.data.kinds.series import REACH


@kinds.register("plain")
@dataclass(frozen=True)
class Plain(Kind):
    """Anything else that is an array of numbers: volumes, videos, embeddings that came from elsewhere."""

    plural = "arrays"
    shape: tuple[int, ...] = setting((1,), doc="of one array")
    mean: float = setting(0.0, doc="of all numbers")
    std: float = setting(1.0, gt=0, doc="deviation of all numbers")

    def fault(self, x: Tensor) -> str | None:
        """N × shape of float32."""
        if x.dtype != torch.float32 or tuple(x.shape[1:]) != self.shape:
            return f"x is {x.dtype} {tuple(x.shape)}: must be N×{sides(self.shape)}, float32"
        return None

    def blank(self, count: int) -> Tensor:
        """Zeros."""
        return torch.zeros(count, *self.shape)

    def inputs(self, x: Tensor) -> Tensor:
        """(x − mean) / std."""
        return (x - self.mean) / self.std

    def spoilt(self, x: Tensor, chosen: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """Gaussian noise of `std` times the range of all numbers, within that range."""
        low, high = float(x.min()), float(x.max())
        return (chosen + std * (high - low) * torch.randn(chosen.shape, generator=stream)).clamp(low, high)

    def noise(self, count: int, stream: torch.Generator) -> Tensor:
        """Every number uniform, up to three deviations from the mean."""
        return (torch.rand(count, *self.shape, generator=stream) * 2 - 1) * REACH

    def shown(self, inputs: Tensor) -> Tensor:
        """In the units of the data."""
        return inputs * self.std + self.mean

    def words(self) -> str:
        """The shape."""
        return f"arrays of {sides(self.shape)}"

    @classmethod
    def of(cls, array: NDArray[Any]) -> "Plain":
        """The kind of these arrays, its normalisation measured on them."""
        std = float(array.std(dtype=np.float64))
        return cls(tuple(array.shape[1:]), float(array.mean(dtype=np.float64)), std if std > 0 else 1.0)
