"""DaFKD's discriminator: Theorem 1 on a case solved by hand, and the factors made from it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.methods.dafkd.domain import (
    Duel,
    adversarial,
    by_class,
    correlation_factors,
    deceive,
    gradient_penalty,
    veil,
    weighted,
)
from fedstill.methods.dafkd.rivalry import joint_loss
from fedstill.models import build_model
from fedstill.parts.learner import Learner


class Plain(Classifier):
    """Three pixels are the features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def sample(*times: int) -> Tensor:
    """Images x = 0, 1, 2 (one-hot), each so many times."""
    return torch.cat([torch.eye(3)[[x]].repeat(n, 1) for x, n in enumerate(times)]).view(-1, 1, 1, 3)


def trained(real: Tensor, generated: Tensor) -> Tensor:
    """f(x) for x = 0, 1, 2 after training a discriminator by (2)."""
    torch.manual_seed(0)
    duel = Duel(Plain(), None, 3)
    learner = Learner(duel, torch.optim.Adam(duel.head.parameters(), lr=0.1))
    for _ in range(300):
        scores = duel(torch.cat([real, generated]))[1]
        learner.step(adversarial(scores[: len(real)], scores[len(real) :]))
    return torch.sigmoid(duel(sample(1, 1, 1))[1]).detach()


def test_theorem_1_by_hand() -> None:
    """Two clients, p_1 = (1/2, 1/4, 1/4), p_2 = (1/4, 1/4, 1/2); the generator draws from p = (3/8, 1/4, 3/8).

    f_1* = p_1/(p_1 + p) = (4/8)/(7/8), (1/4)/(1/2), (2/8)/(5/8) = 4/7, 1/2, 2/5; f_2* = 2/5, 1/2, 4/7.
    α̂_1 = f_1/(f_1 + f_2): 4/7 + 2/5 = 34/35, so 20/34 = 10/17, 1/2, and 14/34 = 7/17.
    """
    generated = sample(3, 2, 3)
    one, two = trained(sample(4, 2, 2), generated), trained(sample(2, 2, 4), generated)
    torch.testing.assert_close(one, torch.tensor([4 / 7, 1 / 2, 2 / 5]), atol=2e-3, rtol=0)
    torch.testing.assert_close(two, torch.tensor([2 / 5, 1 / 2, 4 / 7]), atol=2e-3, rtol=0)
    factors = correlation_factors(torch.stack([one, two]).log())
    torch.testing.assert_close(factors[0], torch.tensor([10 / 17, 1 / 2, 7 / 17]), atol=2e-3, rtol=0)


@given(st.lists(st.lists(st.floats(-300, 300), min_size=3, max_size=3), min_size=1, max_size=5))
def test_factors_sum_to_one_however_sure_the_discriminators_are(scores: list[list[float]]) -> None:
    factors = correlation_factors(torch.nn.functional.logsigmoid(torch.tensor(scores)))
    assert torch.isfinite(factors).all()
    torch.testing.assert_close(factors.sum(0), torch.ones(3))


def test_the_loss_is_one_mean_over_real_and_generated() -> None:
    """Scores log 3 (f = 3/4) for 3 real samples, 0 (f = 1/2) for 1 generated: (3·log(4/3) + log 2)/4."""
    loss = adversarial(torch.full((3,), math.log(3.0)), torch.zeros(1))
    assert float(loss) == pytest.approx((3 * math.log(4 / 3) + math.log(2)) / 4)


def test_the_generators_loss_to_the_letter_and_stable() -> None:
    """f = 3/4: log(1 − f) = −log 4; stable: −log f = log(4/3). At f ≈ e⁻⁵⁰ the first is flat, the second steep."""
    score = torch.tensor([math.log(3.0)])
    assert float(deceive(score, stable=False)) == pytest.approx(-math.log(4))
    assert float(deceive(score, stable=True)) == pytest.approx(math.log(4 / 3))
    slopes = []
    for stable in (False, True):
        hopeless = torch.tensor([-50.0], requires_grad=True)
        deceive(hopeless, stable).backward()
        slopes.append(abs(float(hopeless.grad)))  # type: ignore[arg-type]
    assert slopes[0] < 1e-20
    assert slopes[1] == pytest.approx(1.0)


def test_targets_of_one_client_are_its_own_and_equal_discriminators_give_the_plain_mean() -> None:
    said = torch.tensor([[[0.9, 0.1]], [[0.3, 0.7]]])
    alone = correlation_factors(torch.tensor([[-123.0]]))
    assert torch.equal(weighted(said[:1], alone), said[0])
    equal = correlation_factors(torch.tensor([[-4.0], [-4.0]]))
    torch.testing.assert_close(weighted(said, equal), torch.tensor([[0.6, 0.4]]))


def test_what_a_veiled_client_sends_gives_the_same_targets() -> None:
    """α = 1/2, 1/4: (1/2·(1, 0) + 1/4·(0, 1)) / (3/4) = (2/3, 1/3)."""
    said, log_importance = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([[0.5], [0.25]]).log()
    sent = [veil(p, a) for p, a in zip(said, log_importance, strict=True)]
    blind = sum(p for p, _ in sent) / sum(a for _, a in sent).unsqueeze(-1)  # type: ignore[union-attr]
    torch.testing.assert_close(blind, torch.tensor([[2 / 3, 1 / 3]]))
    torch.testing.assert_close(blind, weighted(said, correlation_factors(log_importance)))
    assert float(veil(said[0], torch.tensor([-500.0]))[1]) > 0


def test_factors_by_class() -> None:
    """Both clients together call samples 0 and 1 class 0, sample 2 class 1: client 0 has (.8 + .6)/2 and .1."""
    said = torch.tensor([[[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]], [[0.6, 0.4], [0.9, 0.1], [0.3, 0.7]]])
    factors = torch.tensor([[0.8, 0.6, 0.1], [0.2, 0.4, 0.9]])
    means, made = by_class(factors, torch.cat([said, torch.zeros(2, 3, 1)], -1))
    torch.testing.assert_close(means, torch.tensor([[0.7, 0.1, 0.0], [0.3, 0.9, 0.0]]))
    assert made.tolist() == [2, 1, 0]


def test_gradient_penalty_by_hand() -> None:
    """s(x) = 4·x_0, at real = generated = 0: ∂f/∂x_0 = 1/4·4 = 1, elsewhere 0: (0 + 1 + 1)/3."""
    duel = Duel(Plain(), None, 3)
    with torch.no_grad():
        duel.head.weight.copy_(torch.tensor([[4.0, 0.0, 0.0]]))
        duel.head.bias.zero_()
    nothing = torch.zeros(2, 1, 1, 3)
    penalty = gradient_penalty(duel, nothing, nothing, torch.Generator())
    assert float(penalty.detach()) == pytest.approx(2 / 3, abs=1e-5)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(penalty, duel.head.weight))


def test_a_shared_trunk_is_no_part_of_the_discriminator_and_an_own_one_leaves_its_idle_head() -> None:
    one, two = (build_model("mlp", (1, 8, 8), 10) for _ in range(2))
    assert set(Duel(one, None, 64).discriminator) == {"head.weight", "head.bias"}
    separate = Duel(one, two, 64)
    assert {n for n in separate.discriminator if n.startswith("trunk.")} == {"trunk.body.1.weight", "trunk.body.1.bias"}
    again = Duel(build_model("mlp", (1, 8, 8), 10), build_model("mlp", (1, 8, 8), 10), 64)
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(again.holding(separate.discriminator)(x)[1], separate(x)[1])


def test_a_broken_discriminator_is_not_taken() -> None:
    duel = Duel(Plain(), None, 3)
    before = duel.discriminator
    after = duel.holding({"head.weight": torch.full((1, 3), float("nan")), "head.bias": torch.zeros(1)}).discriminator
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_generated_features_pass_the_heads_alone() -> None:
    """(9) in feature space. Heads: logits (f_0, f_1), score f_0 − f_1. A generated f = (1, 2, 0) scores −1.

    The real sample has features (2, 0, 0), label 0: CE = log(1 + e⁻²) = .126928 = −log σ(2), and its score is 2.
    L_adv = (−log σ(2) − log σ(1)) / 2 = (.126928 + .313262) / 2 = .220095, together .347023.
    """

    class Doubled(Plain):
        def features(self, x: Tensor) -> Tensor:
            return 2 * x.flatten(1)

    duel = Duel(Doubled(), None, 3, inner=True)
    with torch.no_grad():
        duel.classifier.head.weight.copy_(torch.eye(3)[:2])
        duel.classifier.head.bias.zero_()
        duel.head.weight.copy_(torch.tensor([[1.0, -1.0, 0.0]]))
        duel.head.bias.zero_()
    generated = torch.tensor([[1.0, 2.0, 0.0]])
    logits, scores = duel.of_generated(generated)
    assert (logits.tolist(), scores.tolist()) == ([[1.0, 2.0]], [-1.0])
    loss = joint_loss(duel, sample(1, 0, 0), torch.tensor([0]), generated)
    assert loss.item() == pytest.approx(0.347023, abs=1e-5)
