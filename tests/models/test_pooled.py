"""A convolution with its pooling and ReLU as matrix products: the layers' numbers, and gradients of any order."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import conv2d, max_pool2d, relu

from fedstill.data.kinds import Image
from fedstill.models import initial
from fedstill.models.pooled import in_rows, pooled

torch.set_num_threads(1)

LAYERS = [(1, 6, 5, 12), (3, 4, 3, 8), (2, 16, 5, 8), (2, 20, 3, 6), (2, 3, 1, 4)]
"""Channels in and out, side of the kernel, side of the images: below 16 channels out two rows are made at once."""


def layer(inputs: int, outputs: int, side: int) -> nn.Conv2d:
    torch.manual_seed(1)
    return nn.Conv2d(inputs, outputs, side).double()


def by_layers(images: Tensor, convolution: nn.Conv2d) -> Tensor:
    return relu(max_pool2d(conv2d(images, convolution.weight, convolution.bias), 2))


def one_pixel(weight: float, bias: float) -> nn.Conv2d:
    convolution = nn.Conv2d(1, 1, 1)
    with torch.no_grad():
        convolution.weight.fill_(weight)
        convolution.bias.fill_(bias)  # type: ignore[union-attr]
    return convolution


def test_a_kernel_of_one_pixel_by_hand() -> None:
    """2·(1, 4, 0, 3) − 3 = (−1, 5, −3, 3): the largest is 5, of the second pixel. So the output moves by 2 with that
    pixel, by its 4 with the weight and by 1 with the bias."""
    x = torch.tensor([[[[1.0, 4.0], [0.0, 3.0]]]], requires_grad=True)
    convolution = one_pixel(2, -3)
    out = pooled(in_rows(x, 0), convolution)
    assert out.tolist() == [[[[5.0]]]]
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[[0.0, 2.0], [0.0, 0.0]]]]
    assert convolution.weight.grad is not None
    assert convolution.weight.grad.item() == 4
    assert convolution.bias is not None
    assert convolution.bias.grad is not None
    assert convolution.bias.grad.item() == 1


def test_of_equal_outputs_the_first_gets_the_gradient_as_when_torch_pools() -> None:
    """Empty background is the same everywhere: nothing of it may count four times."""
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    convolution = one_pixel(1, 1)
    (ours,) = torch.autograd.grad(pooled(in_rows(x, 0), convolution).sum(), x)
    (torchs,) = torch.autograd.grad(by_layers(x, convolution).sum(), x)
    assert ours.tolist() == torchs.tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]


def test_below_zero_no_gradient_passes() -> None:
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    out = pooled(in_rows(x, 0), one_pixel(1, -2))
    assert out.tolist() == [[[[0.0]]]]
    assert torch.autograd.grad(out.sum(), x)[0].abs().max() == 0


@pytest.mark.parametrize(("inputs", "outputs", "side", "pixels"), LAYERS)
@pytest.mark.parametrize("batch", [1, 7])
def test_numbers_and_gradients_are_the_layers_own(
    inputs: int, outputs: int, side: int, pixels: int, batch: int
) -> None:
    convolution = layer(inputs, outputs, side)
    x = torch.randn(batch, inputs, pixels, pixels, dtype=torch.float64, requires_grad=True)
    want = by_layers(x, convolution)
    got = pooled(in_rows(x, 0), convolution).permute(3, 1, 0, 2)
    assert torch.allclose(got, want, atol=1e-12)
    weights = torch.randn_like(want)
    asked = [x, *convolution.parameters()]
    slopes = [torch.autograd.grad((out * weights).sum(), asked) for out in (got, want)]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*slopes, strict=True))


@pytest.mark.parametrize(("inputs", "outputs", "side", "pixels"), LAYERS)
def test_gradients_have_gradients(inputs: int, outputs: int, side: int, pixels: int) -> None:
    """As a gradient penalty needs them: the length of the inputs' gradient, differentiated by the weights."""
    convolution = layer(inputs, outputs, side)
    x = torch.randn(4, inputs, pixels, pixels, dtype=torch.float64, requires_grad=True)

    def penalty(out: Tensor) -> list[Tensor]:
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), list(convolution.parameters())))

    ours, layers = penalty(pooled(in_rows(x, 0), convolution)), penalty(by_layers(x, convolution))
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(ours, layers, strict=True))


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32)])
def test_lenet5_gemm_is_lenet5_but_for_the_last_bits(channels: int, side: int) -> None:
    plain, products = (initial(n, Image((channels, side, side)), 5, 1) for n in ("lenet5", "lenet5-gemm"))
    assert {n: w.shape for n, w in plain.state_dict().items()} == {n: w.shape for n, w in products.state_dict().items()}
    assert all(map(torch.equal, plain.state_dict().values(), products.state_dict().values()))
    x = torch.randn(9, channels, side, side)
    assert not torch.equal(plain(x), products(x)), "the layers were called"
    torch.testing.assert_close(plain(x), products(x), atol=1e-6, rtol=1e-5)


def test_where_somebody_watches_the_layers_they_are_called() -> None:
    plain, products = (initial(n, Image((1, 28, 28)), 5, 1) for n in ("lenet5", "lenet5-gemm"))
    seen: list[nn.Module] = []
    assert isinstance(products.body, nn.Sequential)
    products.body[3].register_forward_hook(lambda module, given, out: seen.append(module))
    x = torch.randn(3, 1, 28, 28)
    assert torch.equal(plain(x), products(x))
    assert seen == [products.body[3]]


def test_exported_it_consists_of_torchs_own_layers() -> None:
    model = initial("lenet5-gemm", Image((1, 28, 28)), 5, 1).eval()
    x = torch.randn(2, 1, 28, 28)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert [str(node.target) for node in program.graph.nodes].count("aten.conv2d.default") == 2
    torch.testing.assert_close(program.module()(torch.cat([x, x])), model(torch.cat([x, x])), atol=1e-6, rtol=1e-5)


def grads(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()]))


def both() -> tuple[nn.Module, nn.Module]:
    plain, products = (initial(n, Image((3, 28, 28)), 5, 1) for n in ("lenet5", "lenet5-gemm"))
    return plain, products


def test_gradients_of_the_whole_network_and_of_its_images_are_lenet5s() -> None:
    x = torch.randn(6, 3, 28, 28, requires_grad=True)
    for ours, theirs in zip(*(grads(model, x) for model in both()), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_images_may_lie_in_memory_as_they_like() -> None:
    """Padding keeps the layout of what it pads, so rows need not be contiguous."""
    images = torch.randn(1, 28, 28, 3).permute(0, 3, 1, 2)
    plain, products = both()
    torch.testing.assert_close(products(images), plain(images.contiguous()), atol=1e-6, rtol=1e-5)


def test_a_graph_that_is_kept_gives_the_same_gradient_again() -> None:
    """The first way back writes over what the forward pass had left; the second goes by the layers."""
    _, products = both()
    x = torch.randn(3, 3, 28, 28)
    loss = products(x).square().sum()
    first, second = (torch.autograd.grad(loss, list(products.parameters()), retain_graph=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_frozen_kernel_leaves_its_bias_a_gradient() -> None:
    x = torch.ones(1, 1, 2, 2)
    convolution = one_pixel(1, 1)
    convolution.weight.requires_grad_(False)
    pooled(in_rows(x, 0), convolution).sum().backward()
    assert convolution.bias is not None
    assert convolution.bias.grad is not None
    assert convolution.bias.grad.item() == 1


def test_lower_precision_forward_gradients_and_empty_batches_go_by_the_layers() -> None:
    plain, products = both()
    x = torch.randn(2, 3, 28, 28)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plain(x), products(x))
    with forward_ad.dual_level():
        assert torch.equal(plain(x), products(x))
    assert grads(products, torch.zeros(0, 3, 28, 28, requires_grad=True))[1].abs().max() == 0
