"""FedFTG: labels and ensemble by class counts, samples made hard, the average fine-tuned."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method
from torch import nn

from fedstill.core.loop import rounds
from fedstill.core.shelf import Storage
from fedstill.experiment.run import active, start, transport
from fedstill.experiment.stage import Stage, stage
from fedstill.parts.distil import ensemble
from fedstill.parts.labels import class_shares
from fedstill.parts.learner import Learner, frozen, weights_of


def small(**settings: Any) -> Any:
    return small_method("fedftg", **{"iterations": 3, "distill_batch": 16, "lr": 0.05, **settings})


def played(method: Any, **settings: Any) -> tuple[Stage, Any]:
    plan = small_experiment(method, rounds=1, **settings)
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        return ready, next(rounds(method, ready.env, link, lambda t: active(plan, t), 1))


def test_the_class_wise_ensemble_by_hand() -> None:
    """Clients with counts (3, 1) and (1, 1) say (1, 0) and (0, 1): class 0 weighs 3/4, 1/4, class 1 half and half."""
    said = torch.tensor([[[50.0, 0.0]] * 2, [[0.0, 50.0]] * 2])
    weights = class_shares(torch.tensor([[3, 1], [1, 1]]))[:, torch.tensor([0, 1])]
    torch.testing.assert_close(ensemble(said, weights), torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def test_the_gap_between_student_and_client_by_hand() -> None:
    """KL((3/4, 1/4) ‖ (1/2, 1/2)) = 3/4 log 3/2 + 1/4 log 1/2; for the authors mean |Δ logits| = (log 3 + 0)/2."""
    teacher, student = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)
    assert float(small().gap(teacher, student)) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert float(small(profile="authors").gap(teacher, student)) == pytest.approx(math.log(3.0) / 2)


@pytest.mark.parametrize("profile", ["paper", "authors"])
def test_hard_samples_are_those_on_which_the_student_differs(profile: str) -> None:
    method = small(profile=profile, lambda_cls=0.0, lambda_dis=0.0)
    ready, done = played(method)
    env = ready.env.at(0)
    teachers = [frozen(env.module(r.upload.weights)) for r in done.replies]
    student = frozen(env.module(done.server.average))
    learner = method.generator_learner(env, done.server.generator)
    z, y = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10
    shares = torch.full((3, 16), 1 / 3)

    def gap() -> float:
        with torch.no_grad():
            made = learner.module(z, y)
            return float(sum(method.gap(t(made), student(made)).mean() for t in teachers))

    before = gap()
    for _ in range(10):
        method.harden(learner, z, y, student, teachers, shares)
    assert gap() > 1.1 * before


def test_the_label_term_makes_samples_of_the_label() -> None:
    method = small(lambda_dis=0.0)
    ready, done = played(method)
    env = ready.env.at(0)
    teacher = frozen(env.module(done.replies[0].upload.weights))
    learner, labels = method.generator_learner(env, done.server.generator), done.replies[0].upload.labels
    z = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    y = labels.argsort(descending=True)[:2].repeat(8)  # classes this client knows
    for _ in range(30):
        method.harden(learner, z, y, teacher, [teacher], torch.ones(1, 16))
    assert float((teacher(learner.module(z, y)).argmax(-1) == y).float().mean()) > 0.8


def test_fine_tuning_starts_at_the_weighted_average_and_tells_both() -> None:
    ready, done = played(small())
    sizes = [r.samples for r in done.replies]
    by_hand = sum(n * r.upload.weights["head.bias"] for n, r in zip(sizes, done.replies, strict=True)) / sum(sizes)
    torch.testing.assert_close(done.server.average["head.bias"], by_hand)
    assert not same_bits(done.server.average, done.server.weights)
    start_of = weights_of(small().make_generator(ready.env))
    assert not same_bits(start_of, done.server.generator)
    result = start(small_experiment(small()), out=None)
    assert result.models == ["global", "average"]


@pytest.mark.parametrize("setting", ["student_steps", "generator_steps", "iterations"])
def test_every_count_of_steps_is_taken(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 iterations each has 1 step of the generator and 3 of the student, or one more of what is asked."""
    asked = {"iterations": 2, "generator_steps": 1, "student_steps": 3}
    asked[setting] += 1
    taken = []
    real = Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, *a, **k: (taken.append(self), real(self, *a, **k))[1])
    method = small(**asked)
    ready, done = played(method)
    taken.clear()
    method.server(ready.env.at(0), method.init_server(ready.env.at(0)), done.replies)
    each = sorted(taken.count(learner) for learner in set(taken))
    assert each == sorted(
        [asked["iterations"] * asked["generator_steps"], asked["iterations"] * asked["student_steps"]]
    )


def test_the_counts_that_leave_are_the_clients_own_and_nonsense_is_refused() -> None:
    ready, done = played(small())
    for reply in done.replies:
        assert reply.upload.labels.tolist() == ready.counts[reply.client].tolist()
    wrong = replace(done.replies[0].upload, labels=torch.full((10,), -1))
    assert "label counts" in str(small().objection(ready.env, wrong))
    assert done.bytes["up"]["labels"] == 3 * 10 * 8


def test_batch_norm_keeps_the_clients_statistics() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(1)
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(x).flatten(1))  # type: ignore[no-any-return]

    _, done = played(small(), model=Normed)
    for name in ("norm.running_mean", "norm.running_var"):
        assert torch.equal(done.server.weights[name], done.server.average[name])
