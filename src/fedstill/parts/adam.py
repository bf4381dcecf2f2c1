"""Adam, step by step as `torch.optim.Adam` does it on a CPU and to the same bits, with nothing around it.

Kingma, Ba: Adam: A Method for Stochastic Optimization. ICLR 2015. Why not torch's: see `parts.sgd`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Adam:
    """m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², w ← w − η m̂ / (√v̂ + ε); m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ).

    Args:
        parameters: what is trained.
        lr: η.
        weight_decay: λ; λ w is added to the gradient.
        betas: β₁ and β₂.
        eps: ε.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        self.values = [parameter.detach() for parameter in self.parameters]  # the same memory, which no graph watches
        self.lr = lr
        self.weight_decay = weight_decay
        self.betas = betas
        self.eps = eps
        self.steps: dict[int, int] = {}
        """t of every parameter that ever had a gradient, by its place; and its m and v."""
        self.means: dict[int, Tensor] = {}
        self.squares: dict[int, Tensor] = {}

    def apply(self, gradients: Sequence[Tensor | None]) -> None:
        """One step with these gradients, one for each parameter; None leaves a parameter as it is."""
        used = [place for place, gradient in enumerate(gradients) if gradient is not None]
        if not used:
            return
        for place in used:
            if place not in self.steps:
                self.steps[place] = 0
                self.means[place] = torch.zeros_like(self.values[place], memory_format=torch.preserve_format)
                self.squares[place] = torch.zeros_like(self.values[place], memory_format=torch.preserve_format)
            self.steps[place] += 1
        first, second = self.betas
        moved = [self.values[place] for place in used]
        slopes = [gradient for gradient in gradients if gradient is not None]
        means, squares = [self.means[place] for place in used], [self.squares[place] for place in used]
        times = [float(self.steps[place]) for place in used]
        if self.weight_decay:
            slopes = list(torch._foreach_add(slopes, moved, alpha=self.weight_decay))
        torch._foreach_lerp_(means, slopes, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, slopes, slopes, 1 - second)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [(1 - second**t) ** 0.5 for t in times])
        torch._foreach_add_(roots, self.eps)
        torch._foreach_addcdiv_(moved, means, roots, [-(self.lr / (1 - first**t)) for t in times])

    def state_dict(self) -> dict[str, Any]:
        """t, m and v of every parameter that has them, as torch's optimisers write them."""
        state = {
            place: {"step": torch.tensor(float(t)), "exp_avg": self.means[place], "exp_avg_sq": self.squares[place]}
            for place, t in self.steps.items()
        }
        return {"state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        for name, entry in state["state"].items():
            place = int(name)
            self.steps[place] = round(float(entry["step"]))
            self.means[place] = entry["exp_avg"].to(self.parameters[place], copy=True)
            self.squares[place] = entry["exp_avg_sq"].to(self.parameters[place], copy=True)
