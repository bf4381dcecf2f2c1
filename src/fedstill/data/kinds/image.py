"""Images: N×C×H×W, stored as bytes where they can be, normalised by channel."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.kind import Kind, kinds, sides
from fedstill.core.value import setting


@kinds.register("image")
@dataclass(frozen=True)
class Image(Kind):
    """Channels × height × width. `mean` and `std` have one entry a channel, of values from 0 (black) to 1 (white).

    Stored float32 images are normalised as they are, stored bytes count as value/255.
    """

    plural = "images"
    shape: tuple[int, ...] = setting((1, 1, 1), doc="channels, height, width")
    mean: tuple[float, ...] = setting((), doc="of every channel (empty: 0)")
    std: tuple[float, ...] = setting((), doc="deviation of every channel (empty: 1)")

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean) or (0.0,) * self.shape[0])
        object.__setattr__(self, "std", tuple(self.std) or (1.0,) * self.shape[0])
        super().__post_init__()

    def fault(self, x: Tensor) -> str | None:
        """N×C×H×W of bytes or float32, and a mean and deviation for each channel."""
        if x.ndim != 4 or x.dtype not in (torch.uint8, torch.float32):
            return f"x is {x.dtype} {tuple(x.shape)}: must be N×C×H×W, uint8 or float32"
        if tuple(x.shape[1:]) != self.shape:
            return f"x is {tuple(x.shape)}: must be N×{sides(self.shape)}"
        if not len(self.mean) == len(self.std) == x.shape[1]:
            return f"mean and std must have one entry for each of {x.shape[1]} channels"
        return None

    def blank(self, count: int) -> Tensor:
        """uint8 zeros: black."""
        return torch.zeros(count, *self.shape, dtype=torch.uint8)

    def inputs(self, x: Tensor) -> Tensor:
        """(x − mean) / std, float32."""
        unit = 255.0 if x.dtype == torch.uint8 else 1.0
        mean, std = (_channels(values, unit, x.device) for values in (self.mean, self.std))
        return torch.sub(x, mean).div_(std)

    def spoilt(self, x: Tensor, chosen: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """Gaussian noise of `std` times the range from black to white, within that range."""
        whole = x.dtype == torch.uint8
        low, high = (0.0, 255.0) if whole else (float(x.min()), float(x.max()))
        noisy = chosen.float() + std * (high - low) * torch.randn(chosen.shape, generator=stream)
        noisy = noisy.clamp(low, high)
        return (noisy.round() if whole else noisy).to(x.dtype)

    def noise(self, count: int, stream: torch.Generator) -> Tensor:
        """Every pixel uniform from black to white."""
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return (torch.rand(count, *self.shape, generator=stream) - mean) / std

    def shown(self, inputs: Tensor) -> Tensor:
        """From 0 (black) to 1 (white)."""
        mean, std = (torch.tensor(v, device=inputs.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return (inputs * std + mean).clamp(0, 1)

    def kept(self, inputs: Tensor) -> Tensor:
        """Bytes."""
        return (self.shown(inputs) * 255).round().to(torch.uint8)

    def words(self) -> str:
        """Size and normalisation."""
        return f"images of {sides(self.shape)} with mean {self.mean}, std {self.std}"

    @classmethod
    def of(cls, pixels: NDArray[Any], norm: tuple[tuple[float, ...], tuple[float, ...]] | None = None) -> "Image":
        """The kind of these images, its normalisation measured on them where none is given."""
        mean, std = measure(pixels) if norm is None else norm
        return cls(tuple(pixels.shape[1:]), tuple(mean), tuple(std))


def _channels(values: tuple[float, ...], unit: float, device: torch.device) -> Tensor:
    """A value for each channel, times `unit`, as a tensor that fits images.

    It is asked for in every turn and made once; not while a module is exported, whose tensors stand for others.
    """
    return (_made if torch.compiler.is_compiling() else _kept)(values, unit, device)


def _made(values: tuple[float, ...], unit: float, device: torch.device) -> Tensor:
    return (torch.tensor(values, dtype=torch.float64, device=device) * unit).float().view(-1, 1, 1)


_kept = lru_cache(maxsize=64)(_made)


def measure(pixels: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every channel; uint8 values count as value/255. A constant channel gets deviation 1."""
    if pixels.dtype == np.uint8:
        scale = np.arange(256) / 255
        shares = [np.bincount(pixels[:, c].ravel(), minlength=256) / pixels[:, c].size for c in range(pixels.shape[1])]
        mean = [float(share @ scale) for share in shares]
        std = [float(share @ (scale - m) ** 2) ** 0.5 for share, m in zip(shares, mean, strict=True)]
    else:
        rest = (0, *range(2, pixels.ndim))
        mean = [float(m) for m in pixels.mean(axis=rest, dtype=np.float64)]
        std = [float(s) for s in pixels.std(axis=rest, dtype=np.float64)]
    return tuple(mean), tuple(s if s > 0 else 1.0 for s in std)
