"""The named classifiers: their shapes, sizes, starts and memory layouts."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from fedstill.core.errors import UsageError
from fedstill.models import Classifier, build_model, initial, models
from fedstill.models.resnet import Residual

torch.set_num_threads(1)

IMAGES = [name for name in models if "image" in models[name].takes]
SMALL = [name for name in IMAGES if models[name].pixels is None]
CHANNELS_LAST = [name for name in models if models[name].layout is torch.channels_last]
CASES = [(name, channels, side) for name in IMAGES for channels, side in ((1, 28), (3, 32))]
CASES += [(name, channels, 8) for name in SMALL for channels in (1, 3)]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_every_name_the_papers_need_is_registered() -> None:
    cnns = {f"cnn{i}" for i in range(1, 6)}
    eights = {"resnet8", "resnet8-slim", "resnet8-slim-bn", "resnet8-pooled-bn"}
    resnets = eights | {"resnet11", "resnet11-gn", "resnet18", "resnet18-gn"}
    assert set(IMAGES) == {"lenet5", "lenet5-gemm", "mlp"} | cnns | resnets


@pytest.mark.parametrize(("name", "channels", "side"), CASES)
def test_features_and_logits_have_their_shapes_and_agree(name: str, channels: int, side: int) -> None:
    model = initial(name, (channels, side, side), 7, seed=1).eval()
    x = torch.randn(3, channels, side, side)
    with torch.no_grad():
        features, logits = model.features(x), model.logits(x)
        assert isinstance(model, Classifier)
        assert features.shape == (3, model.width)
        assert logits.shape == (3, 7)
        assert torch.equal(model.head(features), logits)
        assert torch.equal(model(x), logits)
    assert logits.std(0).min() > 1e-5, "different images must give different logits"


@pytest.mark.parametrize(
    ("name", "width"),
    [("lenet5", 120), ("mlp", 64), ("resnet8", 256), ("resnet8-slim", 64), ("resnet11", 256), ("resnet18", 512)],
)
def test_width_is_the_paper_s(name: str, width: int) -> None:
    assert build_model(name, (3, 32, 32), 10).width == width


@pytest.mark.parametrize("channels", [1, 3])
def test_lenet5_parameters(channels: int) -> None:
    """conv 25·C·6 + 6, conv 25·6·16 + 16 = 2,416, conv 25·16·120 + 120 = 48,120, fc 120·84 + 84 = 10,164,
    fc 84·26 + 26 = 2,210: with C = 1 156 + 62,910 = 63,066, with C = 3 456 + 62,910 = 63,366."""
    assert parameters(build_model("lenet5", (channels, 32, 32), 26)) == {1: 63_066, 3: 63_366}[channels]


def test_cnn1_parameters() -> None:
    """3×3 convolutions a→b have 9ab + b: Conv-1 448; Conv-2 2·2,320; Conv-3 4,640 + 9,248; Conv-4 18,496 + 36,928;
    Conv-5 73,856 + 147,584; Conv-6 295,168 + 1,180,160; FC 512·512 + 512 = 262,656 and 512·10 + 10 = 5,130. Sum:
    448 + 4,640 + 13,888 + 55,424 + 221,440 + 1,475,328 + 267,786 = 2,038,954."""
    assert parameters(build_model("cnn1", (3, 32, 32), 10)) == 2_038_954


def test_resnet8_parameters() -> None:
    """Stem 3·64·9; blocks 2·64·64·9, (64 + 128)·128·9 + 64·128, (128 + 256)·256·9 + 128·256; that is 1,728 + 73,728 +
    229,376 + 917,504; GroupNorm 2 per channel of 3·64 + 3·128 + 3·256 = 1,344: 2,688; head 256·10 + 10 = 2,570."""
    assert parameters(build_model("resnet8", (3, 32, 32), 10)) == 1_728 + 73_728 + 229_376 + 917_504 + 2_688 + 2_570


def test_a_pooled_stem_is_stride_2_and_max_pooling_and_the_stages_go_on_from_a_quarter_of_the_side() -> None:
    """32 pixels: 16 after the stride, 8 after pooling, 8, 4 and 2 in the stages; parameters as in the slim one."""
    model: Any = initial("resnet8-pooled-bn", (3, 32, 32), 10, seed=0).eval()
    x = torch.randn(2, 3, 32, 32)
    convolution, norm, *rest = model.body
    stem = F.max_pool2d(F.relu(norm(F.conv2d(x, convolution.weight, stride=2, padding=1))), 3, 2, 1)
    blocks = [layer for layer in rest if isinstance(layer, Residual)]
    torch.testing.assert_close(model.features(x), blocks[2](blocks[1](blocks[0](stem))).mean((2, 3)))
    sides = [stem.shape[-1]] + [nn.Sequential(*blocks[: i + 1])(stem).shape[-1] for i in range(3)]
    assert sides == [8, 8, 4, 2]
    assert parameters(model) == parameters(build_model("resnet8-slim-bn", (3, 32, 32), 10))


def test_resnet11_has_eleven_layers() -> None:
    """The stem, three bottlenecks of three convolutions, the head; the 1×1 shortcuts are not counted."""
    model = build_model("resnet11", (3, 32, 32), 10)
    main = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d) and "shortcut" not in name]
    assert len(main) + 1 == 11


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("cnn1", [(512, 512), (512, 10)]),
        ("cnn2", [(256, 256), (256, 10)]),
        ("cnn3", [(512, 128), (128, 10)]),
        ("cnn4", [(1024, 128), (128, 10)]),
        ("cnn5", [(2048, 256), (256, 10)]),
    ],
)
def test_cnn_fully_connected_layers_are_those_of_fedtkd_s_table_1(name: str, table: list[tuple[int, int]]) -> None:
    model = build_model(name, (3, 32, 32), 10)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == table


@pytest.mark.parametrize("name", ["resnet8", "resnet8-slim", "resnet11-gn", "resnet18-gn"])
def test_group_norm_has_one_channel_per_group_and_no_buffers(name: str) -> None:
    model = build_model(name, (3, 32, 32), 10)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)]
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert len(norms) == len(convolutions)
    assert all(norm.num_groups == norm.num_channels for norm in norms)
    assert not list(model.buffers())


@pytest.mark.parametrize("name", ["lenet5", "lenet5-gemm", "cnn4"])
def test_28_pixels_are_zero_padded_to_32(name: str) -> None:
    small, large = initial(name, (1, 28, 28), 10, seed=3), initial(name, (1, 32, 32), 10, seed=3)
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(small(x), large(F.pad(x, (2, 2, 2, 2))))


def test_lenet5_is_the_convolutional_one() -> None:
    """Its third layer, written linear, is a 5×5 convolution; pooling before ReLU is pooling after it."""
    model = initial("lenet5", (3, 32, 32), 10, seed=0)
    first, second, third = (layer for layer in model.body.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    x = torch.randn(4, 3, 32, 32)
    y = F.max_pool2d(F.relu(F.conv2d(x, first.weight, first.bias)), 2)
    y = F.max_pool2d(F.relu(F.conv2d(y, second.weight, second.bias)), 2)
    y = F.relu(F.conv2d(y, third.weight.view(120, 16, 5, 5), third.bias)).flatten(1)
    torch.testing.assert_close(model.features(x), y)


@pytest.mark.parametrize("name", ["lenet5", "cnn3", "resnet8-slim", "mlp"])
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    def start(seed: int) -> list[torch.Tensor]:
        return list(initial(name, (1, 28, 28), 10, seed).state_dict().values())

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = start(5)
    assert torch.equal(torch.random.get_rng_state(), before), "building drew from the global random state"
    torch.manual_seed(2)
    assert all(map(torch.equal, one, start(5)))
    assert not torch.equal(one[0], start(6)[0])


def test_a_deep_net_without_normalisation_starts_alive() -> None:
    """With PyTorch's default weights the logits of cnn1 differ by 1e-6 between images, and Adam finds no way out."""
    model = initial("cnn1", (1, 32, 32), 10, seed=0)
    assert model(torch.randn(8, 1, 32, 32)).std(0).mean() > 1e-4


@pytest.mark.parametrize("name", CHANNELS_LAST)
@pytest.mark.parametrize("channels", [1, 3])
def test_bits_do_not_depend_on_the_layout_of_weights_or_images(name: str, channels: int) -> None:
    """Weights from a wire are contiguous, those in place are not; with one channel PyTorch follows the weights."""
    model = initial(name, (channels, 32, 32), 5, seed=0).eval()
    travelled = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    x = torch.randn(3, channels, 32, 32)
    loss = [
        m(images).square().sum()
        for m, images in ((model, x), (travelled, x), (model, x.to(memory_format=torch.channels_last)))
    ]
    assert loss[0].item() == loss[1].item() == loss[2].item()
    gradients = [
        torch.autograd.grad(total, m.parameters()) for total, m in zip(loss[:2], (model, travelled), strict=True)
    ]
    assert all(map(torch.equal, *gradients))
    weights = [p for p in model.parameters() if p.dim() == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)


@pytest.mark.parametrize("name", ["lenet5", "lenet5-gemm", "cnn4", "resnet8-slim", "resnet11"])
def test_models_run_under_vmap(name: str) -> None:
    nets = [initial(name, (1, 28, 28), 5, seed).eval() for seed in range(2)]
    weights, buffers = stack_module_state(nets)  # type: ignore[arg-type]
    x = torch.randn(2, 3, 1, 28, 28)
    lanes = vmap(lambda w, b, images: functional_call(nets[0], (w, b), (images,)))(weights, buffers, x)
    for lane, net, images in zip(lanes, nets, x, strict=True):
        torch.testing.assert_close(lane, net(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("lenet5", (1, 8, 8), "model = 'lenet5': takes images of 28 × 28 or 32 × 32 pixels, data have 8 × 8"),
        ("cnn2", (3, 32, 28), "model = 'cnn2': takes images of 28 × 28 or 32 × 32 pixels, data have 32 × 28"),
        ("resnet8", (1, 4, 9), "model = 'resnet8': takes images of at least 8 × 8 pixels, data have 4 × 9"),
    ],
)
def test_a_wrong_size_is_refused(name: str, shape: tuple[int, int, int], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        build_model(name, shape, 10)
    assert str(refused.value) == text
