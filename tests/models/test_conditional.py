"""Generators that are told a label."""

import pytest
import torch

from fedstill.core.errors import UsageError
from fedstill.data.kinds import Image
from fedstill.models import build_model
from fedstill.models.conditional import FeatureGenerator, build_conditional, feature_width


@pytest.mark.parametrize("name", ["embedding", "light", "dcgan"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28)])
def test_images_are_in_the_range_of_the_data_and_depend_on_the_label(name: str, shape: tuple[int, int, int]) -> None:
    """Pixels 0 … 1 with mean 1/2 and deviation 1/4 are −2 … 2."""
    torch.manual_seed(0)
    made = build_conditional(name, Image(shape, (0.5,) * shape[0], (0.25,) * shape[0]), 10, 8, 4).eval()
    z = torch.randn(1, 8).repeat(2, 1)
    one, two = made(z, torch.tensor([3, 7])).detach()
    assert one.shape == shape
    assert float(torch.stack([one, two]).abs().max()) <= 2
    assert not torch.equal(one, two)


def test_a_generator_that_is_told_no_label_ignores_it() -> None:
    made = build_conditional("light", Image((1, 8, 8)), 0, 8, 4).eval()
    one, two = made(torch.ones(1, 8).repeat(2, 1), torch.tensor([3, 7])).detach()
    torch.testing.assert_close(one, two)


def test_an_unknown_generator_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="light"):
        build_conditional("lihgt", Image((1, 8, 8)), 10, 8)


def test_feature_vectors_have_the_models_width() -> None:
    assert feature_width(build_model("mlp", (1, 8, 8), 10), Image((1, 8, 8))) == 64
    features = FeatureGenerator(64, 10, 5)(torch.randn(4, 5), torch.arange(4))
    assert features.shape == (4, 64)


def test_a_model_without_features_says_so() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) @ self.weight

    with pytest.raises(UsageError, match="has no features"):
        feature_width(build_model(Odd(), (1, 8, 8), 10), Image((1, 8, 8)))
