"""Stochastic gradient descent, step by step as `torch.optim.SGD` does it and to the same bits, with nothing around it.

torch's optimisers look up hooks, defaults and profilers at every step, and load its compiler when the first one is
made: for small models that is longer than the step itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Sgd:
    """v ← μ v + (g + λ w), w ← w − η v; without momentum μ, v is the gradient itself.

    Args:
        parameters: what is trained.
        lr: η.
        momentum: μ; a parameter's v begins with its first gradient.
        weight_decay: λ.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.parameters = list(parameters)
        self.values = [parameter.detach() for parameter in self.parameters]  # the same memory, which no graph watches
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: dict[int, Tensor] = {}

    def apply(self, gradients: Sequence[Tensor | None]) -> None:
        """One step with these gradients, one for each parameter; None leaves a parameter as it is."""
        used = [place for place, gradient in enumerate(gradients) if gradient is not None]
        if not used:
            return
        moved = [self.values[place] for place in used]
        steps = [gradient for gradient in gradients if gradient is not None]
        if self.weight_decay:
            steps = list(torch._foreach_add(steps, moved, alpha=self.weight_decay))
        if self.momentum:
            steps = self._accelerated(used, steps)
        torch._foreach_add_(moved, steps, alpha=-self.lr)

    def _accelerated(self, used: Sequence[int], steps: Sequence[Tensor]) -> list[Tensor]:
        known = [place for place in used if place in self.velocity]
        if known:
            gained = [step for place, step in zip(used, steps, strict=True) if place in self.velocity]
            before = [self.velocity[place] for place in known]
            torch._foreach_mul_(before, self.momentum)
            torch._foreach_add_(before, gained, alpha=1.0)
        for place, step in zip(used, steps, strict=True):
            if place not in self.velocity:
                self.velocity[place] = step.clone()
        return [self.velocity[place] for place in used]

    def state_dict(self) -> dict[str, Any]:
        """v of every parameter that has one, as torch's optimisers write it."""
        return {"state": {place: {"momentum_buffer": v} for place, v in self.velocity.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.velocity = {
            int(place): entry["momentum_buffer"].to(self.parameters[int(place)], copy=True)
            for place, entry in state["state"].items()
        }
