"""Distillation on the server, with numbers made by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.method import Env
from fedstill.data.kinds import Image
from fedstill.parts.distil import Lesson, Patience, distil, ensemble, soft_kl
from fedstill.parts.learner import Learner


def env() -> Env:
    return Env(1, (10,), 2, Image((1, 1, 2)), lambda k, seed: nn.Sequential(nn.Flatten(), nn.Linear(2, 2)))


def student() -> Learner:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    return Learner(module, torch.optim.Adam(module.parameters(), lr=0.05))


def lesson(count: int = 64) -> Lesson:
    """Samples x; the targets are what a linear teacher says."""
    x = torch.randn(count, 1, 1, 2, generator=torch.Generator().manual_seed(3))
    return Lesson(x, torch.softmax(x.flatten(1) @ torch.tensor([[2.0, -1.0], [0.5, 1.0]]), -1))


def test_kl_to_soft_targets_by_hand() -> None:
    """Targets (3/4, 1/4) against (1/2, 1/2): 3/4 log 3/2 + 1/4 log 1/2; at t = 2 the same logits 0, times 4."""
    targets, logits = torch.tensor([[0.75, 0.25]]), torch.zeros(1, 2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(soft_kl(targets, logits)) == pytest.approx(expected)
    assert float(soft_kl(targets, logits, 2.0)) == pytest.approx(4 * expected)


def test_certain_targets_give_finite_loss_and_gradient() -> None:
    logits = torch.tensor([[80.0, -80.0]], requires_grad=True)
    loss = soft_kl(torch.tensor([[0.0, 1.0]]), logits)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(160.0)
    assert torch.isfinite(logits.grad).all()  # type: ignore[union-attr]


def test_ensemble_by_hand() -> None:
    """Two models say (3/4, 1/4) and (1/4, 3/4): (1/2, 1/2) together; with weights 3/4, 1/4: (5/8, 3/8)."""
    logits = torch.tensor([[[3.0, 1.0]], [[1.0, 3.0]]]).log()
    torch.testing.assert_close(ensemble(logits), torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(ensemble(logits, torch.tensor([[0.75], [0.25]])), torch.tensor([[0.625, 0.375]]))


def test_the_student_comes_to_the_targets() -> None:
    learner, plan = student(), lesson()
    before = plan.loss(learner.module)
    steps = distil(env(), learner, plan, batch=16, epochs=40)
    assert steps == 160
    assert plan.loss(learner.module) < before / 100


def test_a_lesson_is_split_without_loss() -> None:
    whole = lesson(10)
    rest, held = whole.split(env(), 0.3)
    assert (len(rest.images), len(held.images)) == (7, 3)
    every = torch.cat([rest.images, held.images]).flatten()
    assert torch.equal(every.sort().values, whole.images.flatten().sort().values)


def test_patience_ends_the_lesson_and_gives_back_the_best_weights() -> None:
    """Every step makes this exam worse: the start was best, and after `patience` steps it is over."""
    learner, plan = student(), lesson()
    before = learner.weights
    exam = Lesson(plan.images, 1 - plan.targets)
    steps = distil(env(), learner, plan, batch=16, epochs=100, patience=Patience(exam, steps=30, every=10))
    assert steps == 30
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights.items())


def test_evaluation_mode_keeps_the_statistics_of_batch_norm() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(2), nn.Linear(2, 2))
    statistics: Tensor = module[1].running_mean  # type: ignore[assignment]
    for training in (False, True):
        learner = Learner(module.train(training), torch.optim.Adam(module.parameters(), lr=0.01))
        distil(env(), learner, lesson(33), batch=16, epochs=1)  # in training the last batch, of one, is dropped
        assert bool((statistics != 0).any()) == training
