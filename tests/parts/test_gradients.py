"""Our gradients are torch.autograd.grad's, to the bit."""

import pytest
import torch
from torch import nn

from fedstill.parts.gradients import gradients


def test_gradients_are_torchs_to_the_bit_and_touch_no_grad() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(7, 5), torch.randint(0, 3, (7,))
    parameters = [*model.parameters(), nn.Parameter(torch.ones(2))]

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    ours, theirs = gradients(loss(), parameters), torch.autograd.grad(loss(), parameters, allow_unused=True)
    assert ours[-1] is theirs[-1] is None  # the loss does not know it
    assert all(torch.equal(a, b) for a, b in zip(ours[:-1], theirs[:-1], strict=True))
    assert all(parameter.grad is None for parameter in parameters)


def test_a_loss_for_each_sample_is_refused_as_torch_does() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="scalar outputs"):
        gradients(weight * 2, [weight])
