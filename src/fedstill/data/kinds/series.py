"""Series: N×C×T, several channels over time, each channel normalised by its own mean and deviation."""

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.kind import Kind, kinds, sides
from fedstill.core.value import setting
from fedstill.data.kinds.image import measure

REACH = 3.0
"""Plain noise reaches so many deviations to either side."""


@kinds.register("series")
@dataclass(frozen=True)
class Series(Kind):
    """Channels × time steps, stored as float32."""

    plural = "series"
    shape: tuple[int, ...] = setting((1, 1), doc="channels, time steps")
    mean: tuple[float, ...] = setting((), doc="of every channel (empty: 0)")
    std: tuple[float, ...] = setting((), doc="deviation of every channel (empty: 1)")
    names: tuple[str, ...] = setting((), doc="of the channels, where they have names")

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean) or (0.0,) * self.shape[0])
        object.__setattr__(self, "std", tuple(self.std) or (1.0,) * self.shape[0])
        super().__post_init__()

    def fault(self, x: Tensor) -> str | None:
        """N×C×T of float32, and a mean and deviation for each channel."""
        if x.ndim != 3 or x.dtype != torch.float32 or tuple(x.shape[1:]) != self.shape:
            return f"x is {x.dtype} {tuple(x.shape)}: must be N×{sides(self.shape)}, float32"
        if not len(self.mean) == len(self.std) == x.shape[1]:
            return f"mean and std must have one entry for each of {x.shape[1]} channels"
        return None

    def blank(self, count: int) -> Tensor:
        """Zeros."""
        return torch.zeros(count, *self.shape)

    def inputs(self, x: Tensor) -> Tensor:
        """(x − mean) / std, channel by channel."""
        mean, std = self._norm(x)
        return (x - mean) / std

    def _norm(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(v, device=like.device).view(-1, 1) for v in (self.mean, self.std))
        return mean, std

    def spoilt(self, x: Tensor, chosen: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """Gaussian noise of `std` times each channel's range, within that range."""
        low, high = x.amin((0, 2), keepdim=True), x.amax((0, 2), keepdim=True)
        noisy = chosen + std * (high - low) * torch.randn(chosen.shape, generator=stream)
        return noisy.clamp(low, high)

    def noise(self, count: int, stream: torch.Generator) -> Tensor:
        """Every value uniform, up to three deviations from its channel's mean."""
        return (torch.rand(count, *self.shape, generator=stream) * 2 - 1) * REACH

    def shown(self, inputs: Tensor) -> Tensor:
        """In the units of the data."""
        mean, std = self._norm(inputs)
        return inputs * std + mean

    def words(self) -> str:
        """Channels and length."""
        return f"series of {sides(self.shape)}"

    @classmethod
    def of(cls, array: NDArray[Any], names: tuple[str, ...] = ()) -> "Series":
        """The kind of these series (N×C×T), its normalisation measured on them."""
        return cls(tuple(array.shape[1:]), *measure(array), names)
