"""A user's own modules, and what goes wrong with them."""

import copy
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedstill.core.errors import UsageError
from fedstill.data.kinds import Tokens
from fedstill.models import Classifier, build_model, initial

torch.set_num_threads(1)

SHAPE = (1, 8, 8)


class Plain(nn.Module):
    """Two linear layers, registered in the wrong order, and a bare parameter."""

    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.last = nn.Linear(6, outputs)
        self.first = nn.Linear(64, 6)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.first(x.flatten(1)) * self.scale)))


class Vgg(nn.Module):
    """`features` that are no feature vectors, as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3)
        self.classifier = nn.Sequential(nn.Linear(144, 12), nn.ReLU(), nn.Linear(12, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class Speaking(nn.Module):
    """features() and head, where the head is more than one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(64, 9)
        self.head = nn.Sequential(nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 10))

    def features(self, x: Tensor) -> Tensor:
        return self.trunk(x.flatten(1)).relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Norming(nn.Module):
    """A `head` of more than the last linear layer, and no features()."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(64, 9)
        self.head = nn.Sequential(nn.LayerNorm(9), nn.Linear(9, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x.flatten(1)))


class Ending(nn.Module):
    """A linear layer, then anything."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.end = nn.Linear(64, 10), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.linear(x.flatten(1)))


class NoLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).mean((2, 3))


class OwnClassifier(Classifier):
    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.body, self.head, self.width = nn.Linear(64, 3), nn.Linear(3, classes), 3

    def features(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))


def spoilt(module: nn.Module) -> nn.Module:
    nn.init.constant_(module.get_parameter("first.weight"), torch.nan)
    return module


def positional(s: Any, c: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(s[0] * s[1] * s[2], c))


def only_classes(hidden: int = 7, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, classes))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(5, *SHAPE)


@pytest.mark.parametrize(
    ("spec", "width"),
    [(Plain, 6), (Vgg, 12), (Speaking, 9), (Norming, 9), (positional, 64), (only_classes, 7), (OwnClassifier, 3)],
)
def test_features_head_and_logits_agree(spec: Any, width: int, images: Tensor) -> None:
    model = build_model(spec, SHAPE, 10).eval()
    features = model.features(images)
    assert features.shape == (5, width)
    assert model.width == width
    torch.testing.assert_close(model.head(features), model.logits(images))
    torch.testing.assert_close(model(images), model.logits(images))


@pytest.mark.parametrize(
    ("cls", "prefix"), [(Plain, ""), (Speaking, ""), (NoLinear, ""), (Vgg, "own."), (Norming, "own.")]
)
def test_names_weights_and_outputs_stay_the_user_s_own(cls: type[nn.Module], prefix: str, images: Tensor) -> None:
    """With "own." before them only where a part of the module is called as one of ours."""
    own, other = cls().eval(), cls().eval()
    model = build_model(own, SHAPE, 10)
    torch.testing.assert_close(model(images), own(images))
    assert list(model.state_dict()) == [prefix + name for name in own.state_dict()]
    assert [name for name, _ in model.named_parameters()] == [prefix + name for name, _ in own.named_parameters()]
    weights = {prefix + name: tensor for name, tensor in other.state_dict().items()}
    torch.testing.assert_close(functional_call(model, weights, (images,)), other(images))
    torch.testing.assert_close(model(images), own(images))
    model.load_state_dict(weights)
    torch.testing.assert_close(model(images), other(images))


def test_the_module_given_is_copied() -> None:
    own = Plain()
    model = build_model(own, SHAPE, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert own.scale.item() == 2.0
    assert own.training
    assert not own.last._forward_hooks


def test_train_and_eval_reach_the_user_s_module(images: Tensor) -> None:
    model = build_model(Plain, SHAPE, 10)
    assert model.training
    assert not torch.equal(model(images), model(images)), "dropout must act"
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_whole_and_apart(make: Callable[[Classifier], Classifier], images: Tensor) -> None:
    model = build_model(Plain, SHAPE, 10).eval()
    twin = make(model)
    assert torch.equal(twin(images), model(images))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(images).abs().max() == 0
    assert twin.head(torch.ones(1, 6)).abs().max() == 0
    assert model(images).abs().max() > 0


@pytest.mark.parametrize("end", [lambda z: z.softmax(1), lambda z: F.log_softmax(z, 1), lambda z: z])
def test_a_softmax_at_the_end_is_left_off(end: Callable[[Tensor], Tensor], images: Tensor) -> None:
    own = Ending(end)
    model = build_model(own, SHAPE, 10)
    torch.testing.assert_close(model.logits(images), own.linear(images.flatten(1)))


@pytest.mark.parametrize("own", [Ending(lambda z: 3 * z), NoLinear()])
def test_a_module_without_a_last_linear_layer_gives_logits_but_no_features(own: nn.Module, images: Tensor) -> None:
    model = build_model(own, SHAPE, 10)
    torch.testing.assert_close(model.logits(images), own(images))
    with pytest.raises(UsageError, match=r"model = \w+: has no features; end it in nn.Linear or give it features"):
        model.features(images)
    with pytest.raises(UsageError, match="has no features"):
        _ = model.head


def test_weights_of_a_factory_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = initial(Plain, SHAPE, 10, seed=4)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    two, three = initial(Plain, SHAPE, 10, seed=4), initial(Plain, SHAPE, 10, seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    weight = one.state_dict()["last.weight"]
    assert torch.equal(weight, two.state_dict()["last.weight"])
    assert not torch.equal(weight, three.state_dict()["last.weight"])


def test_a_module_keeps_its_weights() -> None:
    own = Plain()
    assert torch.equal(initial(own, SHAPE, 10, seed=9).state_dict()["last.weight"], own.last.weight)


def test_a_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_config.py").write_text(
        "from torch import nn\n"
        "def net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert build_model("beside_the_config:net", SHAPE, 4)(torch.zeros(2, *SHAPE)).shape == (2, 4)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("lenet", "unknown model 'lenet'; did you mean lenet5"),
        ("no.such:thing", "model = 'no.such:thing': cannot import no.such: ModuleNotFoundError: No module named 'no'"),
        ("torch.nn:Lineal", "model = 'torch.nn:Lineal': cannot import 'Lineal' from torch.nn"),
        ("math:pi", "model = 'math:pi': must be a name"),
        ("os:getcwd", "model = 'os:getcwd': gives a str, must give a torch.nn.Module"),
        (5, "model = 5: must be a name"),
        (lambda: Plain(12), "gives 12 outputs, data have 10 classes"),
        (Plain(12), "model = Plain: gives 12 outputs, data have 10 classes"),
        (lambda a, b, c: None, "cannot be built as factory() or factory(shape, classes): TypeError"),
        (lambda: nn.Linear(5, 10), "cannot take images of shape (1, 8, 8): RuntimeError: mat1 and mat2"),
        (nn.Identity(), "model = Identity: gives (2, 1, 8, 8) for 2 images, must give (2, 10)"),
        (Ending(lambda z: ("z", z)), "model = Ending: gives a tuple, must give a tensor of logits"),  # type: ignore
        (Plain().requires_grad_(False), "model = Plain: has no parameters that ask for a gradient"),
        (spoilt(Plain()), "model = Plain: first.weight holds numbers that are not finite"),
    ],
)
def test_errors_are_one_line_and_say_what_is_wrong(spec: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)) as refused:
        build_model(spec, SHAPE, 10)
    assert "\n" not in str(refused.value)


def test_a_copied_model_of_ours_is_checked_too() -> None:
    with pytest.raises(UsageError, match="gives 26 outputs, data have 10 classes"):
        build_model(build_model("mlp", SHAPE, 26), SHAPE, 10)


def test_features_are_found_where_another_layer_answers_last(images: Tensor) -> None:
    """An auxiliary head after the classifier's: features are the 6 numbers that the classifier's own layer gets."""

    class Two(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            hidden = torch.tanh(self.first(x.flatten(1)))
            return self.last(hidden), self.other(hidden)

    model = build_model(Two(), SHAPE, 10)
    assert model.width == 6
    torch.testing.assert_close(model.head(model.features(images)), model(images))


def test_a_text_model_without_embed_refuses_imagined_texts() -> None:
    """Numbers of words are classified; embeddings are refused in a line that says what is missing."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 4)
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.table(x).mean(1))

    model = initial(Words(), Tokens(5, 20, 4), 2, 0)
    assert model(torch.ones(3, 5, dtype=torch.int64)).shape == (3, 2)
    with pytest.raises(UsageError, match=r"give it embed\(tokens\)"):
        model(torch.zeros(3, 5, 4))
