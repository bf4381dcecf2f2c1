"""What every method expects of a model: `logits(x) = head(features(x))`, and `features(x) = features(embed(x))`."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module


class Classifier(nn.Module, ABC):
    """Inputs in, logits out, by way of a feature vector."""

    takes: ClassVar[tuple[str, ...]] = ("image",)
    """The kinds of data it takes, by name."""

    layout: ClassVar[torch.memory_format] = torch.contiguous_format
    """The memory layout it computes in. It changes speed and last bits, so each model fixes its own."""
    pixels: ClassVar[tuple[int, ...] | None] = None
    """The image sides it takes; None: any from `smallest`."""
    smallest: ClassVar[int] = 8

    head: nn.Module
    """Maps feature vectors to logits."""
    width: int
    """The size of a feature vector."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, width) of the inputs x."""

    def embed(self, x: Tensor) -> Tensor:
        """Inputs as a generator would make them: real numbers. Only texts are anything else."""
        return x

    def logits(self, x: Tensor) -> Tensor:
        """The logits (batch, classes) of the inputs x."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """The logits of x."""
        return self.logits(x)

    def chain(self) -> tuple[nn.Module, ...]:
        """The modules that make logits of inputs, one after the other; empty where there is more to it than that."""
        return ()


def watched(module: nn.Module) -> bool:
    """Is anything called when the module or a part of it is, besides the `forward` of its class?

    Who computes a module by other means than calling it has to ask.
    """
    return torch_module._has_any_global_hook() or any(_hooked(part) for part in module.modules())  # type: ignore[no-untyped-call]


def _hooked(part: nn.Module) -> bool:
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(hooks) or "forward" in vars(part)
