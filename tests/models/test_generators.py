"""Image generators, and the count of what they compute."""

from typing import Any

import pytest
import torch
from multiply_adds import multiply_adds
from torch import nn

from fedstill.core.errors import UsageError
from fedstill.core.rng import seeded
from fedstill.data.kinds import Image
from fedstill.models import build_generator, generators
from fedstill.models.generator import DoublingConv2d, NarrowConv2d, UpsampledConv2d

torch.set_num_threads(1)


def test_the_papers_generators_are_registered() -> None:
    assert set(generators) == {"dafl", "dcgan", "light"}


@pytest.mark.parametrize("name", ["dafl", "dcgan", "light"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_images_have_the_data_s_shape_and_range(name: str, shape: tuple[int, int, int]) -> None:
    """The sigmoid's 0 … 1, normalised by mean .5 and std .25, is −2 … 2."""
    colours = shape[0]
    generator = build_generator(name, Image(shape, (0.5,) * colours, (0.25,) * colours), 11, channels=8)
    assert generator.noise == 11
    images = generator(torch.randn(4, 11))
    assert images.shape == (4, *shape)
    assert -2 <= images.min() < images.max() <= 2
    assert images.std(0).mean() > 1e-3, "different noise must give different images"
    assert not {"mean", "std"} & set(generator.state_dict())


@pytest.mark.parametrize("name", ["dafl", "dcgan", "light"])
def test_each_colour_has_its_own_mean_and_std(name: str) -> None:
    """Undone, both normalisations are the same pictures."""
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 4.0])
    with seeded(0):
        plain = build_generator(name, Image((3, 8, 8)), 5, channels=4)
    with seeded(0):
        normalised = build_generator(name, Image((3, 8, 8), tuple(mean.tolist()), tuple(std.tolist())), 5, channels=4)
    z = torch.randn(3, 5)
    torch.testing.assert_close(normalised(z) * std.view(3, 1, 1) + mean.view(3, 1, 1), plain(z))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (8, 8)])
def test_upsampled_convolution_is_upsample_then_convolve(layout: torch.memory_format, height: int, width: int) -> None:
    """Forward and all three gradients, borders and bias included."""
    torch.manual_seed(0)
    fused = UpsampledConv2d(5, 7).double()
    plain = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(5, 7, 3, padding=1)).double()
    plain[1].load_state_dict(fused.state_dict())
    x = torch.randn(2, 5, height, width, dtype=torch.double).contiguous(memory_format=layout).requires_grad_()
    weights = torch.randn(2, 7, 2 * height, 2 * width, dtype=torch.double)
    for left, right in zip(_all(fused, x, weights), _all(plain, x, weights), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3, 7])
@pytest.mark.parametrize(
    ("ours", "plain", "factor"),
    [
        (NarrowConv2d, lambda i, o: nn.Conv2d(i, o, 3, padding=1), 1),
        (DoublingConv2d, lambda i, o: nn.ConvTranspose2d(i, o, 4, stride=2, padding=1), 2),
    ],
)
def test_fast_convolutions_are_torch_s(ours: Any, plain: Any, factor: int, outputs: int) -> None:
    """Forward and all three gradients, few outputs (scattered) or many."""
    torch.manual_seed(0)
    fast, slow = ours(5, outputs).double(), plain(5, outputs).double()
    slow.load_state_dict(fast.state_dict())
    x = torch.randn(2, 5, 6, 4, dtype=torch.double, requires_grad=True)
    weights = torch.randn(2, outputs, 6 * factor, 4 * factor, dtype=torch.double)
    for left, right in zip(_all(fast, x, weights), _all(slow, x, weights), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def _all(module: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    y = module(x)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])]


def original(generator: nn.Module) -> nn.Sequential:
    """dafl as its authors write it, with the weights of ours: linear, upsample, convolve, upsample, convolve."""
    layers: list[nn.Module] = []
    for layer in generator.body:
        if isinstance(layer, UpsampledConv2d):
            convolution = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1)
            convolution.load_state_dict(layer.state_dict())
            layers += [nn.Upsample(scale_factor=2), convolution]
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def test_dafl_is_the_authors_generator() -> None:
    """Their weights start from N(0, 2 / (9 · outputs)): .0417 and .0589 for 128 and 64 outputs."""
    generator = build_generator("dafl", Image((1, 32, 32)), 100)
    first, second = (layer for layer in generator.body if isinstance(layer, UpsampledConv2d))
    assert first.weight.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)
    assert second.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
    z = torch.randn(3, 100)
    torch.testing.assert_close(generator(z), torch.sigmoid(original(generator)(z)), rtol=1e-4, atol=1e-5)


def test_dcgan_halves_its_channels_from_4_by_4() -> None:
    """At 32 pixels 512×4×4, 256×8×8, 128×16×16, image; at 28, whose halving ends at 7, 256×7×7, 128×14×14, image."""
    for shape, small in (((3, 32, 32), (512, 4, 4)), ((1, 28, 28), (256, 7, 7)), ((1, 8, 8), (128, 4, 4))):
        body = build_generator("dcgan", Image(shape), 100).body
        assert body[0].small == small
        assert body[-1].in_channels == 128


def test_multiply_adds_by_hand() -> None:
    """conv 8·8 pixels × 4·2·9 = 4,608; transposed 8·8 inputs × 4·3·16 = 12,288; linear 3·16·16·5 = 3,840; batch 2."""
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1), nn.Flatten()]
    module = nn.Sequential(*layers, nn.BatchNorm1d(768), nn.Linear(768, 5))
    assert multiply_adds(module, torch.zeros(2, 2, 8, 8)) == 2 * (4_608 + 12_288 + 3_840)
    assert module.training
    assert module[3].num_batches_tracked == 0
    assert not module[0]._forward_hooks


@pytest.mark.parametrize(("channels", "share"), [(16, 266.6), (64, 23.56)])
def test_light_is_a_small_share_of_dafl(channels: int, share: int) -> None:
    """dafl, noise 100, one colour, 32 pixels: 100·8,192 + 16²·128·128·9 + 32²·128·64·9 + 32²·64·9 = 114,655,232.
    light: 100·64c + 8²·16c² + 16²·16c: 430,080 for c = 16, 4,866,048 for c = 64: 1/266.6 and 1/23.6."""
    z = torch.zeros(1, 100)
    dafl = build_generator("dafl", Image((1, 32, 32)), 100)
    light = build_generator("light", Image((1, 32, 32)), 100, channels)
    assert multiply_adds(dafl, z) == multiply_adds(original(dafl), z) == 114_655_232
    assert multiply_adds(light, z) == {16: 430_080, 64: 4_866_048}[channels]
    assert multiply_adds(dafl, z) / multiply_adds(light, z) == pytest.approx(share, rel=1e-3)


def test_light_has_16_channels_unless_told() -> None:
    assert build_generator("light", Image((1, 28, 28)), 10).body[0].small == (16, 7, 7)


@pytest.mark.parametrize(
    ("name", "shape", "mean", "text"),
    [
        ("lite", (1, 8, 8), [0.0], "unknown generator 'lite'"),
        (
            "dafl",
            (1, 30, 32),
            [0.0],
            "generator = 'dafl': makes images whose sides are multiples of 4, data have 30 × 32",
        ),
        ("light", (3, 8, 8), [0.0], "generator = 'light': needs one mean and std for each of 3 channels, got 1 and 1"),
    ],
)
def test_errors_say_what_is_wrong(name: str, shape: tuple[int, int, int], mean: list[float], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        build_generator(name, Image(shape, mean, mean), 10)


def test_no_channels_are_not_the_usual_channels() -> None:
    with pytest.raises(UsageError, match="generator = 'light': noise must be ≥ 1 and channels ≥ 2, got 10 and 0"):
        build_generator("light", Image((1, 8, 8)), 10, channels=0)
