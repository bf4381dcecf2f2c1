"""Every loss against numbers worked out by hand, and where logarithms, roots and quotients are at their limits."""

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.parts.losses import (
    activation,
    class_entropy,
    contrast,
    decaying,
    entropy_weight,
    kl,
    one_hot,
    relational,
    relations,
)

SURE = torch.tensor([[log(3), 0.0]])  # softmax: 3/4, 1/4
EVEN = torch.tensor([[0.0, 0.0]])  # softmax: 1/2, 1/2
LINE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
BENT = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(loss, of)[0]


def test_kl_is_the_batch_mean_of_the_divergence():
    """KL((¾,¼) ‖ (½,½)) = ¾ ln 1.5 + ¼ ln ½ = .304099 − .173287 = .130812; with an equal pair beside it, half of that.

    The other way round ½ ln(½/¾) + ½ ln(½/¼) = −.202733 + .346574 = .143841.
    """
    assert kl(SURE, EVEN).item() == pytest.approx(0.130812, abs=1e-6)
    assert kl(EVEN, SURE).item() == pytest.approx(0.143841, abs=1e-6)
    assert kl(torch.cat([SURE, EVEN]), torch.cat([EVEN, EVEN])).item() == pytest.approx(0.065406, abs=1e-6)


def test_kl_divides_logits_by_the_temperature_and_multiplies_by_its_square():
    """Twice the logits at t = 2 are the same predictions: 4 × .130812 = .523248."""
    assert kl(2 * SURE, EVEN, 2.0).item() == pytest.approx(0.523248, abs=1e-6)


def test_kl_of_certainties_is_finite():
    """Teacher sure of class 0, student sure of class 1 by 1,000: KL = 1,000; its gradient is (−1, 1)."""
    student = torch.tensor([[-500.0, 500.0]], requires_grad=True)
    loss = kl(torch.tensor([[500.0, -500.0]]), student)
    assert loss.item() == pytest.approx(1000)
    assert gradient(loss, student).tolist() == [[-1, 1]]


def test_one_hot_is_the_cross_entropy_to_the_likeliest_class():
    """(2) −ln ¾ = .287682 and −ln ½ = .693147, mean .490415."""
    assert one_hot(SURE).item() == pytest.approx(0.287682, abs=1e-6)
    assert one_hot(torch.cat([SURE, EVEN])).item() == pytest.approx(0.490415, abs=1e-6)


def test_class_entropy_is_that_of_the_mean_prediction():
    """(3) p̄ = (.625, .375): .625 ln .625 + .375 ln .375 = −.293752 − .367811 = −.661563; evenly spread −ln 2."""
    assert class_entropy(torch.cat([SURE, EVEN])).item() == pytest.approx(-0.661563, abs=1e-6)
    assert class_entropy(torch.tensor([[50.0, 0.0], [0.0, 50.0]])).item() == pytest.approx(-log(2), abs=1e-6)


def test_class_entropy_of_one_class_only_is_zero_with_a_finite_gradient():
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = class_entropy(logits)
    assert loss.item() == 0
    assert torch.isfinite(gradient(loss, logits)).all()


def test_activation_is_minus_the_mean_size_of_features():
    """(4) −(1 + 2 + 3 + 0) / 4 = −1.5."""
    assert activation(torch.tensor([[1.0, -2.0], [3.0, 0.0]])).item() == -1.5


def test_relations_are_distances_over_their_mean():
    """(7) The triangle (0,0), (3,4), (6,8): distances 5, 10, 5, mean 20/3. As written μ = 2·20/9 = 40/9."""
    triangle = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    assert relations(triangle).tolist() == pytest.approx([0.75, 1.5, 0.75])
    assert relations(triangle, paper_mu=True).tolist() == pytest.approx([1.125, 2.25, 1.125])


def test_relational_on_three_points():
    """(8) Relations (½, 3/2, 1) against (¾, 3/2, ¾): differences ¼, 0, ¼, Huber ½·(¼)² = 1/32 each, mean 1/48.

    The sum over the six ordered pairs is 1/8. With μ as written all relations are 3/2 as large: mean 9/4 · 1/48. With
    δ = .1 the Huber loss is .1·(.25 − .05) = .02 each, mean .04/3.
    """
    assert relational(LINE, BENT).item() == pytest.approx(1 / 48)
    assert relational(LINE, BENT, pairs="sum").item() == pytest.approx(1 / 8)
    assert relational(LINE, BENT, paper_mu=True).item() == pytest.approx(9 / 4 / 48)
    assert relational(LINE, BENT, delta=0.1).item() == pytest.approx(0.04 / 3)


def logits(seed: int, size: int) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(2, 9), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_relational_knows_neither_scale_nor_order(seed: int, size: int, a: float, b: float):
    teacher, student = logits(seed, size), logits(seed + 1000, size)
    loss = relational(teacher, student).item()
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    assert relational(a * teacher, student).item() == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert relational(teacher, b * student).item() == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert relational(teacher[order], student[order]).item() == pytest.approx(loss, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("same", [logits(3, 5), LINE.repeat(2, 1), torch.ones(4, 3)])
def test_identical_outputs_give_zero_and_finite_gradients(same: Tensor):
    """Also where samples of the batch coincide, and where all do."""
    student = same.clone().requires_grad_()
    loss = relational(same, student)
    assert loss.item() == 0
    assert gradient(loss, student).abs().max() == 0


def test_a_model_that_answers_always_the_same_still_gets_finite_gradients():
    student = torch.zeros(4, 3, requires_grad=True)
    loss = relational(logits(1, 4), student)
    assert loss.item() > 0
    assert torch.isfinite(gradient(loss, student)).all()


def test_a_lone_sample_has_no_relations():
    student = logits(1, 1).requires_grad_()
    loss = relational(logits(2, 1), student)
    assert loss.item() == 0
    assert gradient(loss, student).abs().max() == 0


def test_the_relations_of_the_teacher_are_constants():
    teacher, student = LINE.clone().requires_grad_(), BENT.clone().requires_grad_()
    taught, untouched = torch.autograd.grad(relational(teacher, student), [student, teacher], allow_unused=True)
    assert untouched is None
    assert taught.abs().sum() > 0


def test_the_entropy_weight():
    """(10) H = 0: η/2 = .8. Three equal classes: e^H = 3, 1.6/4 = .4. A sure sample and four equal classes: H = ln 2,
    1.6/3. (¾,¼): H = .562335, e^H = 1.754765, 1.6/2.754765 = .580812, and so twice its logits at t = 2.
    """
    assert entropy_weight(torch.tensor([[500.0, -500.0]])).item() == pytest.approx(0.8)
    assert entropy_weight(torch.zeros(2, 3)).item() == pytest.approx(0.4)
    assert entropy_weight(torch.tensor([[999.0, 0.0, 0.0, 0.0], [0.0] * 4])).item() == pytest.approx(1.6 / 3)
    assert entropy_weight(SURE).item() == pytest.approx(0.580812, abs=1e-6)
    assert entropy_weight(2 * SURE, temperature=2.0).item() == pytest.approx(0.580812, abs=1e-6)


def test_the_entropy_weight_is_a_share_and_a_constant():
    """η = 2 reaches 1 at H = 0; a larger η does not go beyond."""
    sure = torch.tensor([[500.0, -500.0]], requires_grad=True)
    assert entropy_weight(sure, eta=2.0).item() == 1
    assert entropy_weight(sure, eta=9.0).item() == 1
    assert not entropy_weight(sure).requires_grad


def test_the_decay():
    """.9 · .98² = .86436; .9 · .98^54 = .30231 is the last above .3."""
    assert decaying(0.9, 0.98, 0.3, 2) == pytest.approx(0.86436)
    assert decaying(0.9, 0.98, 0.3, 54) == pytest.approx(0.30231, abs=1e-5)
    assert decaying(0.9, 0.98, 0.3, 55) == decaying(0.9, 0.98, 0.3, 10**6) == 0.3


def test_the_contrast():
    """Cosines 1 to the near and 0 to the far model, τ = ½: ln(1 + e^−2) = .126928; as near to both: ln 2."""
    x, y = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert contrast(x, x, y, 0.5).item() == pytest.approx(0.126928, abs=1e-6)
    assert contrast(x, y, y, 0.5).item() == pytest.approx(log(2))
    zero = torch.zeros(1, 2, requires_grad=True)
    assert torch.isfinite(gradient(contrast(zero, x, y), zero)).all()
