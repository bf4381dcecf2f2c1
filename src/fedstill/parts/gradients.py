"""Gradients of a loss, by torch's engine and to the bits of `torch.autograd.grad`, with less around it.

`torch.autograd.grad` asks of every output and input whether somebody overrides it, whether it is nested, and whether
its shape is a symbol; for a small model that takes as long as the engine itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_engine = torch.autograd.Variable._execution_engine


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradient of a loss for each parameter; None for one that the loss does not depend on, or that is frozen."""
    if not all(parameter.requires_grad for parameter in parameters):
        found = iter(gradients(loss, [parameter for parameter in parameters if parameter.requires_grad]))
        return tuple(next(found) if parameter.requires_grad else None for parameter in parameters)
    if loss.dim():
        return torch.autograd.grad(loss, parameters, allow_unused=True)  # it says what is wrong with such a loss
    slopes: tuple[Tensor, ...] = _engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, tuple(parameters), True, accumulate_grad=False
    )
    return slopes
