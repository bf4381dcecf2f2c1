"""DP-SGD's learner: gradients by hand, clipping, noise, and batches as the accountant assumes them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

pytest.importorskip("opacus")

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.registry import Registry
from fedstill.data.kinds import Image, Series, Table, Tokens
from fedstill.models import initial, models
from fedstill.parts.learner import Learner
from fedstill.parts.private_learner import PrivateLearner, SampleGuard, refusal


def guarded(module: nn.Module, noise: float = 0.0, clip: float = 1e9, expected: float = 1.0) -> PrivateLearner:
    guard = SampleGuard(noise, clip, b"7")
    guard.expected = expected
    learner = guard.learner(module, torch.optim.SGD(module.parameters(), lr=1.0))
    assert isinstance(learner, PrivateLearner)
    return learner


def moved(learner: Learner, before: list[Tensor]) -> list[Tensor]:
    """What the optimiser was given: at lr 1, how far the parameters went back."""
    return [old - new.detach() for old, new in zip(before, learner.parameters, strict=True)]


def parameters(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet5", (1, 28, 28)), ("lenet5-gemm", (1, 28, 28)), ("mlp", (1, 8, 8)), ("resnet8-slim", (3, 32, 32))],
)
def test_without_noise_and_clipping_the_step_is_sgds_own(name: str, shape: tuple[int, int, int]) -> None:
    """Also for networks in channels-last layout and with ReLUs that write over their input."""
    x, y = torch.randn(5, *shape), torch.arange(5)
    module = initial(name, shape, 10, 0).train()
    plain = torch.autograd.grad(cross_entropy(module(x), y), list(module.parameters()))
    learner, before = guarded(module, expected=5), parameters(module)
    learner.step(cross_entropy(learner(x), y))
    for got, want in zip(moved(learner, before), plain, strict=True):
        assert torch.allclose(got, want, atol=1e-5)


KINDS: list[Kind] = [
    Image((1, 8, 8)),
    Series((3, 20)),
    Table(("a", "b"), (0.0, 1.0), (1.0, 2.0), ("b",), ("c", "d"), (("x", "y", "z"), ("u", "v"))),
    Tokens(10, 40, 8),
]
CASES = [(n, k) for n in models for k in KINDS if Registry.name_of(type(k)) in models[n].takes and not models[n].pixels]


@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda case: case if isinstance(case, str) else case.words())
def test_samples_are_clipped_one_by_one_in_every_model_that_is_not_refused(name: str, kind: Kind) -> None:
    """The step is the sum of each sample's own gradient, made by itself and brought to half of the smallest norm; a
    model in which samples cannot be told apart is refused.
    """
    module = initial(name, kind, 3, 1).train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    x, y = kind.noise(4, torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 1])
    if refusal(module):
        with pytest.raises(UsageError, match="private: "):
            guarded(module)
        return
    each = []
    for i in range(4):
        loss = cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        each.append([torch.zeros_like(p) if g is None else g for p, g in zip(module.parameters(), found, strict=True)])
    norms = [torch.cat([g.flatten() for g in gradients]).norm() for gradients in each]
    clip = 0.5 * float(min(norms))
    want = [sum(g / n * clip for g, n in zip(column, norms, strict=True)) for column in zip(*each, strict=True)]
    learner, before = guarded(module, clip=clip), parameters(module)
    learner.step(cross_entropy(learner(x), y))
    for got, wanted in zip(moved(learner, before), want, strict=True):
        assert torch.allclose(got, wanted, atol=2e-3 * clip)  # type: ignore[arg-type]


def line(*weights: float) -> nn.Linear:
    module = nn.Linear(len(weights), 1, bias=False)
    module.weight.data = torch.tensor([weights])
    return module


def test_each_samples_gradient_is_clipped_before_they_are_summed() -> None:
    """The gradient of w·x is x: (0, .5) stays, (3, 4) of norm 5 becomes (.6, .8). Their sum over 4 expected samples
    is (.15, .325). The clipped gradient is 1e-6 short of 1, opacus' guard against a division by zero.
    """
    learner = guarded(line(1.0, 1.0), clip=1.0, expected=4)
    before = parameters(learner.module)
    learner.step(learner(torch.tensor([[0.0, 0.5], [3.0, 4.0]])).mean())
    assert torch.allclose(moved(learner, before)[0], torch.tensor([[0.15, 0.325]]), atol=1e-6)


def test_noise_has_the_scale_that_was_asked_for() -> None:
    """10,000 parameters, a gradient of 0, σ = 3, clip 2, 8 expected: a standard deviation of .75, to 3 %.

    The standard error of a standard deviation over 10,000 draws is .7 %; of the mean .0075.
    """
    learner = guarded(line(*[0.0] * 10_000), noise=3.0, clip=2.0, expected=8)
    before = parameters(learner.module)
    learner.step(learner(torch.zeros(4, 10_000)).mean())
    drawn = moved(learner, before)[0]
    assert float(drawn.std()) == pytest.approx(0.75, rel=0.03)
    assert abs(float(drawn.mean())) < 0.03


def test_free_losses_and_shifts_are_added_as_they_are() -> None:
    """Private: 3 clipped to 1 over 1 expected; free: 10 · 2; shift: 100 · .5. In all 1 + 20 + 50."""
    learner = guarded(line(1.0), clip=1.0)
    before = parameters(learner.module)
    free = 10 * learner.freely(torch.tensor([[2.0]])).mean()
    learner.step(learner(torch.tensor([[3.0]])).mean(), free, shift=[torch.tensor([[100.0]])], pull=0.5)
    assert float(moved(learner, before)[0]) == pytest.approx(71, abs=1e-4)


def test_a_step_on_free_samples_alone_releases_nothing() -> None:
    learner = guarded(line(1.0), noise=5.0)
    before = parameters(learner.module)
    learner.step(free=learner.freely(torch.tensor([[2.0]])).mean())
    assert float(moved(learner, before)[0]) == 2.0
    assert learner.guard.released == 0


def test_parameters_that_private_samples_do_not_reach_get_no_noise() -> None:
    module = nn.ModuleDict({"own": line(1.0), "public": line(1.0)})
    learner = guarded(module, noise=5.0)
    before = parameters(module)
    with learner.watched():
        loss = module["own"](torch.tensor([[2.0]])).mean()
    learner.step(loss)
    own, public = moved(learner, before)
    assert float(own) != 2.0
    assert float(public) == 0.0


def test_an_empty_batch_is_noise_alone() -> None:
    """3 samples at a rate of 1/3: (2/3)³ = 30 % of batches are empty. The gradient of each sample is 1, 1 expected."""
    guard = SampleGuard(0.0, 10.0, b"7")
    module, empty = line(1.0), 0
    learner = guard.learner(module, torch.optim.SGD(module.parameters(), lr=1.0))
    for chosen in guard.batches(3, 1, 40):
        before = parameters(module)
        learner.step(learner(torch.ones(3, 1)[chosen]).mean())
        assert float(moved(learner, before)[0]) == pytest.approx(0 if guard.blank else len(chosen), abs=1e-4)
        empty += guard.blank
    assert 5 < empty < 20
    assert guard.released == 40, "an empty batch is a release too: it tells that there was nothing"


def test_batches_are_poisson_samples() -> None:
    """50 samples at a rate of .2: a batch has 10 ± √(50·.2·.8) = 2.83; each sample is in a fifth of the batches."""
    guard = SampleGuard(1.0, 1.0, b"3")
    member = torch.zeros(2000, 50)
    for row, chosen in enumerate(guard.batches(50, 10, 2000)):
        member[row, chosen] = 1.0
    sizes = member.sum(1)
    assert guard.expected == pytest.approx(10)
    assert float(sizes.mean()) == pytest.approx(10, abs=0.25)
    assert float(sizes.std()) == pytest.approx(2.83, rel=0.06)
    assert float((member.mean(0) - 0.2).abs().max()) < 0.04
    together = torch.corrcoef(member.T).fill_diagonal_(0)
    assert float(together.abs().max()) < 0.12, "samples are drawn one by one"


def test_a_private_loss_whose_samples_were_not_watched_is_refused() -> None:
    learner = guarded(line(1.0))
    with pytest.raises(RuntimeError, match="unwatched"):
        learner.step(learner.freely(torch.ones(1, 1)).mean())


def test_layers_that_mix_samples_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match=r"private: 1 is a BatchNorm1d, which mixes samples; take a -gn model"):
        guarded(module)
