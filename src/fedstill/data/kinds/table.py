"""Tables: rows of numbers and categories, each column normalised by itself.

A row is stored as float32: its numbers, then its categories' codes; NaN stands for a missing value. A model gets the
normalised numbers (a missing one is the mean: 0), a 1 for each number that is missing where the column knows missing
values, and for every category a block of 0s with one 1. A generator makes blocks that are soft choices: shares that
add up to 1. So nothing that a model does with a category needs it to be a whole number.

    >>> kind = Table(("age",), (40.0,), (10.0,), ("age",), ("sex",), (("f", "m"),))
    >>> kind.inputs(torch.tensor([[50.0, 1.0], [float("nan"), 0.0]])).tolist()
    [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.kind import Kind, kinds
from fedstill.core.value import setting
from fedstill.data.kinds.series import REACH

FAR = 10.0
"""A number further from its column's mean than so many deviations counts as so far."""


@kinds.register("table")
@dataclass(frozen=True)
class Table(Kind):
    """Columns of numbers with mean and deviation, and columns of categories with the names of these."""

    plural = "rows"
    numeric: tuple[str, ...] = setting((), doc="names of the columns of numbers")
    mean: tuple[float, ...] = setting((), doc="of every column of numbers")
    std: tuple[float, ...] = setting((), doc="deviation of every column of numbers")
    missing: tuple[str, ...] = setting((), doc="columns of numbers in which some are missing")
    categorical: tuple[str, ...] = setting((), doc="names of the columns of categories")
    categories: tuple[tuple[str, ...], ...] = setting((), doc="the categories of each of these columns")
    dates: tuple[str, ...] | None = field(default=None, compare=False)
    """Columns of numbers that are dates, as days; None where it is not known. Models do not depend on it."""
    shape: tuple[int, ...] = field(init=False, default=(0,))

    def __post_init__(self) -> None:
        total = len(self.numeric) + len(self.missing) + sum(self.blocks)
        object.__setattr__(self, "shape", (total,))
        super().__post_init__()

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many categories each column of categories has."""
        return tuple(len(names) for names in self.categories)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, as they are stored."""
        return (*self.numeric, *self.categorical)

    def fault(self, x: Tensor) -> str | None:
        """N×columns of float32, and a mean and deviation for each number."""
        if x.ndim != 2 or x.dtype != torch.float32 or x.shape[1] != len(self.columns):
            return f"x is {x.dtype} {tuple(x.shape)}: must be N×{len(self.columns)}, float32"
        if not len(self.mean) == len(self.std) == len(self.numeric) or len(self.categories) != len(self.categorical):
            return "mean, std and categories must have one entry for each column"
        return None

    def blank(self, count: int) -> Tensor:
        """Rows in which everything is missing."""
        return torch.full((count, len(self.columns)), torch.nan)

    def inputs(self, x: Tensor) -> Tensor:
        """Normalised numbers, a mark for each missing one, a block for each category (all 0: unknown or missing)."""
        count = len(self.numeric)
        mean, std = (torch.tensor(v, device=x.device) for v in (self.mean, self.std))
        numbers = x[:, :count]
        absent = numbers.isnan()
        parts = [((numbers - mean) / std).clamp(-FAR, FAR).masked_fill(absent, 0.0)]
        if self.missing:
            parts.append(absent[:, [self.numeric.index(name) for name in self.missing]].to(x.dtype))
        for place, size in enumerate(self.blocks):
            codes = x[:, count + place, None]
            parts.append((codes == torch.arange(size, device=x.device)).to(x.dtype))
        return torch.cat(parts, 1)

    def spoilt(self, x: Tensor, chosen: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """Numbers: noise of `std` times the column's range; categories: another one, with probability `std`."""
        count = len(self.numeric)
        noisy = chosen.clone()
        if count:
            every, numbers = x[:, :count], chosen[:, :count]
            low, high = every.nan_to_num(nan=torch.inf).amin(0), every.nan_to_num(nan=-torch.inf).amax(0)
            reach = torch.where(high > low, high - low, 0.0)  # a column without any number stays as it is
            moved = numbers + std * reach * torch.randn(numbers.shape, generator=stream)
            noisy[:, :count] = torch.where(reach > 0, moved.clamp(low, high), numbers)
        for place, size in enumerate(self.blocks, count):
            changed = torch.rand(len(chosen), generator=stream) < std
            other = torch.randint(size, (len(chosen),), generator=stream).to(x.dtype)
            noisy[:, place] = torch.where(changed, other, chosen[:, place])
        return noisy

    def noise(self, count: int, stream: torch.Generator) -> Tensor:
        """Numbers uniform up to three deviations from the mean; nothing missing; every category equally likely."""
        parts = [(torch.rand(count, len(self.numeric), generator=stream) * 2 - 1) * REACH]
        parts.append(torch.zeros(count, len(self.missing)))
        for size in self.blocks:
            category = torch.randint(size, (count,), generator=stream)
            parts.append(torch.nn.functional.one_hot(category, size).float())
        return torch.cat(parts, 1)

    def shown(self, inputs: Tensor) -> Tensor:
        """Rows as they are stored: numbers in their units (NaN where marked as missing), the likeliest categories."""
        count = len(self.numeric)
        mean, std = (torch.tensor(v, device=inputs.device) for v in (self.mean, self.std))
        numbers, marks, *blocks = torch.split(inputs, [count, len(self.missing), *self.blocks], 1)
        numbers = numbers * std + mean
        for place, name in enumerate(self.missing):
            column = self.numeric.index(name)
            absent = marks[:, place] > 0.5
            numbers[:, column] = numbers[:, column].masked_fill(absent, torch.nan)
        codes = [block.argmax(1, keepdim=True).to(inputs.dtype) for block in blocks]
        return torch.cat([numbers, *codes], 1)

    def words(self) -> str:
        """How many columns of which sort."""
        return f"rows of {len(self.numeric)} numbers and {len(self.categorical)} categories"

    @classmethod
    def of(
        cls,
        array: NDArray[Any],
        numeric: tuple[str, ...],
        categorical: tuple[str, ...] = (),
        categories: tuple[tuple[str, ...], ...] = (),
        dates: tuple[str, ...] | None = None,
    ) -> "Table":
        """The kind of these rows (numbers first, then codes): means and deviations of what is not missing."""
        mean, std, missing = [], [], []
        for place, name in enumerate(
            numeric
        ):  # column by column: a copy of all rows may be more than there is room for
            column = array[:, place]
            there = column[~np.isnan(column)].astype(np.float64)
            mean.append(float(there.mean()) if len(there) else 0.0)
            std.append((float(there.std()) if len(there) else 0.0) or 1.0)
            if len(there) < len(column):
                missing.append(name)
        return cls(numeric, tuple(mean), tuple(std), tuple(missing), categorical, categories, dates)
