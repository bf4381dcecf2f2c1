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


def test_a_frozen_parameter_has_no_gradient_and_the_others_have_theirs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(7, 5), torch.randint(0, 3, (7,))
    whole = gradients(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    model[0].weight.requires_grad_(False)
    rest = gradients(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    assert rest[0] is None
    assert all(torch.equal(a, b) for a, b in zip(whole[1:], rest[1:], strict=True))


def test_a_loss_for_each_sample_is_refused_as_torch_does() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="scalar outputs"):
        gradients(weight * 2, [weight])
