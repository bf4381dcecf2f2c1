"""Models and generators of every kind of data."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.registry import Registry
from fedstill.data.kinds import Image, Plain, Series, Table, Tokens
from fedstill.models import auto, build_generator, build_model, initial, models
from fedstill.models.conditional import build_conditional, feature_width

KINDS: list[Kind] = [
    Image((1, 8, 8)),
    Series((3, 20)),
    Series((2, 1)),
    Table(("a", "b"), (0.0, 1.0), (1.0, 2.0), ("b",), ("c", "d"), (("x", "y", "z"), ("u", "v"))),
    Tokens(10, 40, 8),
    Tokens(2, 9, 6),
    Plain((2, 3, 4)),
]
PAIRS = [(n, kind) for n in models for kind in KINDS if Registry.name_of(type(kind)) in models[n].takes]
FITTING = [(n, kind) for n, kind in PAIRS if not (isinstance(kind, Image) and models[n].pixels)]


@pytest.mark.parametrize(("name", "kind"), FITTING, ids=lambda case: case if isinstance(case, str) else case.words())
def test_features_and_logits_agree_and_differ_between_samples(name: str, kind: Kind) -> None:
    model = initial(name, kind, 3, seed=1).eval()
    x = kind.noise(5, torch.Generator().manual_seed(2))
    with torch.no_grad():
        features, logits = model.features(x), model(x)
        assert features.shape == (5, model.width) == (5, feature_width(model, kind))
        assert torch.equal(model.head(features), logits)
        assert torch.allclose(model(model.embed(x)), logits), "what embed gives is taken as well"
        alone = torch.cat([model(one[None]) for one in x])
    assert torch.allclose(alone, logits, atol=1e-5), "a sample's logits do not depend on its neighbours"
    assert logits.std(0).min() > 1e-5


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.words())
def test_auto_picks_a_model_that_fits(kind: Kind) -> None:
    assert build_model(auto(kind), kind, 4)(kind.noise(2, torch.Generator())).shape == (2, 4)


@pytest.mark.parametrize("name", ["light", "embedding"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.words())
def test_a_generator_makes_what_a_model_takes_and_learns_from_it(name: str, kind: Kind) -> None:
    generator = build_conditional(name, kind, 3, 5, 4)
    made = generator(torch.randn(6, 5), torch.arange(6) % 3)
    assert made.shape == (6, *kind.imagined_shape)
    model = build_model(auto(kind), kind, 3)
    (gradient,) = torch.autograd.grad(model(made).square().sum(), list(generator.parameters())[:1])
    assert gradient.abs().sum() > 0
    if isinstance(kind, Table):
        numbers, marks, three, two = torch.split(made, [2, 1, 3, 2], 1)
        assert torch.allclose(three.sum(1), torch.ones(6))
        assert torch.allclose(two.sum(1), torch.ones(6)), "a soft choice in every block"
        assert marks.min() > 0
        assert marks.max() < 1
        assert numbers.abs().max() <= 4


def test_a_soft_category_is_the_mixture_of_its_embeddings() -> None:
    """Half f and half m enter the network as the mean of their embeddings."""
    kind = Table((), (), (), (), ("sex",), (("f", "m"),))
    model: Any = initial("tabresnet", kind, 2, seed=0).eval()
    first = model.body[0]
    seen: list[Tensor] = []
    first.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    model(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    assert torch.allclose(seen[0][2], (seen[0][0] + seen[0][1]) / 2)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: build_model("lenet5", KINDS[3], 2),
            "model = 'lenet5': is not for table data (rows of 8); fitting: mlp",
        ),
        (lambda: build_model("textcnn", KINDS[1], 2), "model = 'textcnn': is not for series data (series of 3×20)"),
        (lambda: build_generator("dafl", KINDS[1], 9), "generator = 'dafl': makes images, data are series; use light"),
    ],
)
def test_what_does_not_fit_says_what_does(call: Any, line: str) -> None:
    with pytest.raises(UsageError) as error:
        call()
    assert str(error.value).startswith(line)


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wrapped(nn.Module):
    """An own module that gives its logits in some wrapping."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.body, self.wrap = nn.Sequential(nn.Flatten(), nn.Linear(60, 4)), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.body(x))


@pytest.mark.parametrize("wrap", [Answer, lambda z: {"logits": z, "more": 1}, lambda z: (z, "hidden")])
def test_logits_are_found_in_objects_dictionaries_and_tuples(wrap: Any) -> None:
    own = Wrapped(wrap)
    model = build_model(own, Series((3, 20)), 4)
    x = torch.randn(2, 3, 20)
    assert torch.allclose(model(x), own.body(x))
    assert model.features(x).shape == (2, 60), "and features are still found"


class OwnText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(40, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.table(x) if not x.is_floating_point() else x).mean(1))


class OwnTextThatEmbeds(OwnText):
    def embed(self, x: Tensor) -> Tensor:
        return self.table(x)


def test_an_own_model_of_texts_says_how_it_embeds() -> None:
    kind = Tokens(10, 40, 8)
    tokens = kind.noise(2, torch.Generator())
    model = build_model(OwnTextThatEmbeds, kind, 3)
    assert torch.allclose(model(model.embed(tokens)), model(tokens))
    with pytest.raises(UsageError, match=r"model = OwnText: texts are imagined as embeddings; give it embed\(tokens\)"):
        build_model(OwnText, kind, 3).embed(tokens)
