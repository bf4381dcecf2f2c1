"""A perceptron's gradients are autograd's, to the bit; what is no plain perceptron is left to autograd."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedstill.core.classifier import Classifier
from fedstill.data.kinds import Image
from fedstill.models import initial
from fedstill.models.adopt import adopt
from fedstill.parts.perceptron import Perceptron

KIND = Image((1, 6, 6))


def adopted(*layers: nn.Module) -> Classifier:
    return adopt(nn.Sequential(nn.Flatten(), *layers), KIND, 4, "own")


@pytest.mark.parametrize("hidden", [(), (64,), (20, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_autograds_to_the_bit(hidden: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    widths = [36, *hidden, 4]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.ReLU()] * bool(layers) + [nn.Linear(before, after, bias=bias)]
    module = adopted(*layers)
    parameters = list(module.parameters())
    perceptron = Perceptron.of(module, parameters)
    assert perceptron is not None
    for size in (1, 10, 64):
        x, y = torch.randn(size, 1, 6, 6), torch.randint(0, 4, (size,))
        theirs = torch.autograd.grad(cross_entropy(module(x), y), parameters)
        assert all(torch.equal(a, b) for a, b in zip(perceptron.gradients(x, y), theirs, strict=True))


def test_the_packages_own_mlp_is_one_and_a_convolution_is_none() -> None:
    mlp, lenet = initial("mlp", KIND, 4, 1), initial("lenet5", Image((1, 28, 28)), 4, 1)
    assert Perceptron.of(mlp, list(mlp.parameters())) is not None
    assert Perceptron.of(lenet, list(lenet.parameters())) is None


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_lenet5_as_products_is_one_to_the_bits_of_autograd(shape: tuple[int, int, int]) -> None:
    module = initial("lenet5-gemm", Image(shape), 4, 1).train()
    parameters = list(module.parameters())
    perceptron = Perceptron.of(module, parameters)
    assert perceptron is not None
    for size in (1, 24, 64):
        x, y = torch.randn(size, *shape), torch.randint(0, 4, (size,))
        theirs = torch.autograd.grad(cross_entropy(module(x), y), parameters)
        assert all(torch.equal(a, b) for a, b in zip(perceptron.gradients(x, y), theirs, strict=True))


def hooked() -> Classifier:
    module = adopted(nn.Linear(36, 4))
    module.get_submodule("1").register_forward_hook(lambda *_: None)
    return module


def frozen() -> Classifier:
    module = adopted(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4))
    next(module.parameters()).requires_grad_(False)
    return module


def tied() -> Classifier:
    shared = nn.Linear(4, 4)
    return adopted(nn.Linear(36, 4), nn.ReLU(), shared, nn.ReLU(), shared)


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        frozen,
        tied,
        lambda: adopted(nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 4)),
        lambda: adopted(nn.Linear(36, 8), nn.Dropout(0.5), nn.Linear(8, 4)),
        lambda: adopted(nn.Linear(36, 1), nn.ReLU(), nn.Linear(1, 4)),
        lambda: adopted(nn.Linear(36, 4), nn.LogSoftmax(1)),
    ],
)
def test_what_is_more_than_that_is_left_to_autograd(make: Callable[[], Classifier]) -> None:
    module = make()
    assert Perceptron.of(module, list(module.parameters())) is None


def test_a_part_of_the_parameters_is_left_to_autograd() -> None:
    module = adopted(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4))
    assert Perceptron.of(module, list(module.parameters())[2:]) is None
