"""What a network computes, counted."""

from typing import Any

import torch
from torch import Tensor, nn


def multiply_adds(module: nn.Module, example: Tensor) -> int:
    """Count the multiply-adds of `module(example)` in convolutions (transposed ones too) and linear layers.

    A layer counts as what it is by name, whatever shortcut it computes by: a convolution of outputs × inputs × kernel
    area for each output pixel. Taps that fall on padding count. No gradient, no change of state.

        >>> multiply_adds(nn.Conv2d(2, 3, 3, padding=1), torch.zeros(1, 2, 4, 4))  # 4·4 pixels × 3 × 2 × 3·3
        864
    """
    total = 0

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += output.numel() * layer.in_features
        elif isinstance(layer, nn.ConvTranspose2d):
            total += inputs[0].numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Conv2d):
            total += output.numel() * layer.weight[0].numel()

    handles = [layer.register_forward_hook(count) for layer in module.modules()]
    modes = {layer: layer.training for layer in module.modules()}
    try:
        with torch.no_grad():
            module.eval()(example)
    finally:
        for handle in handles:
            handle.remove()
        for layer, training in modes.items():
            layer.training = training
    return total
