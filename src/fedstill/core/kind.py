"""Kinds of data: what one sample is, and everything that follows from it.

A kind is a value: the shape of a model's input, how stored samples become inputs, how they are spoilt by noise, what
plain noise of the kind looks like, and what a figure shows. `data/kinds/` holds one file a kind. A run writes its kind
down with `plain()`, and `kind_of` reads it back: who uses a model needs no data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedstill.core.registry import Registry
from fedstill.core.value import Value, build_named, plain


class Kind(Value, ABC):
    """What one sample is. Subclasses are frozen dataclasses, registered by name (abstract)."""

    plural: ClassVar[str]
    """What errors call many samples: images, series, rows …"""
    shape: tuple[int, ...]
    """Of one input of a model."""

    @property
    def imagined_shape(self) -> tuple[int, ...]:
        """Of one sample that a generator makes: that of an input, except where inputs are numbers of words."""
        return self.shape

    @property
    def width(self) -> int:
        """How many numbers a generator makes for one sample."""
        return int(torch.Size(self.imagined_shape).numel())

    @abstractmethod
    def fault(self, x: Tensor) -> str | None:
        """What is wrong with stored samples `x` (None: nothing)."""

    @abstractmethod
    def blank(self, count: int) -> Tensor:
        """Stored samples that say nothing: black, 0, missing, empty."""

    @abstractmethod
    def inputs(self, x: Tensor) -> Tensor:
        """Stored samples as a new tensor that a model takes."""

    def noised(self, x: Tensor, rows: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """A copy of the stored samples `x`, in which those at `rows` are spoilt; `std` = 1 leaves little of them."""
        out = x.clone()
        out[rows] = self.spoilt(x, x[rows], std, stream)
        return out

    @abstractmethod
    def spoilt(self, x: Tensor, chosen: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """The samples `chosen` from `x` with noise, which stays in the range of `x`."""

    @abstractmethod
    def noise(self, count: int, stream: torch.Generator) -> Tensor:
        """Inputs that nobody learnt to make: plain noise in the range of the data."""

    @abstractmethod
    def shown(self, inputs: Tensor) -> Tensor:
        """Inputs in the units of the data, as figures show them."""

    def kept(self, inputs: Tensor) -> Tensor:
        """Inputs as a gallery keeps them."""
        return self.shown(inputs)

    @abstractmethod
    def words(self) -> str:
        """The kind in a few words: `series of 9×128`."""

    def plain(self) -> dict[str, Any]:
        """The kind as numbers, text and lists; `kind_of` turns it back."""
        return dict(plain(self))


kinds: Registry[Kind] = Registry("kind of data", Kind)


def kind_of(spec: Mapping[str, Any]) -> Kind:
    """The kind that `Kind.plain` described."""
    made: Kind = build_named(Kind, spec)  # type: ignore[type-abstract]
    return made


def sides(shape: tuple[int, ...]) -> str:
    """A shape in words: 9×128."""
    return "×".join(map(str, shape))
