"""Class weights, with numbers derived by hand."""

import pytest
import torch
from smallest import small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.core.shelf import Storage
from fedstill.data import Samples
from fedstill.data.kinds import Series
from fedstill.experiment.stage import stage
from fedstill.parts.class_weights import ClassWeights


@pytest.mark.parametrize(("strength", "counts"), [(0.0, [80, 20, 0]), (0.5, [67, 33, 0]), (1.0, [50, 50, 0])])
def test_classes_get_the_shares_asked_for(strength: float, counts: list[int]) -> None:
    """Of 80 and 20: at ½, √80 : √20 = 2 : 1, of 100 samples 67 and 33; at 1, 50 each; a class of none stays so."""
    env = stage(small_experiment(small_method("fedavg")), Storage()).env.at(3, 1)
    data = Samples(torch.arange(100.0).view(100, 1, 1), torch.tensor([0] * 80 + [1] * 20), Series((1, 1)))
    made = ClassWeights(strength=strength).weighted(env, data)
    assert made.counts(3).tolist() == counts
    rare = made.x[made.y == 1].flatten()
    repeats = torch.unique(rare, return_counts=True)[1]
    assert len(repeats) == 20, "every sample of a rare class is used"
    assert repeats.max() - repeats.min() <= 1
    common = made.x[made.y == 0].flatten()
    assert len(common.unique()) == counts[0], "none of a common class comes twice"
    again = ClassWeights(strength=strength).weighted(env.at(9, 1), data)
    assert torch.equal(again.x, made.x), "the same in every round"


def test_it_stands_alone() -> None:
    twice = (ClassWeights(), ClassWeights(strength=0.5))
    with pytest.raises(UsageError, match="class-weights stands alone"):
        small_experiment(small_method("fedavg"), wrappers=twice)
