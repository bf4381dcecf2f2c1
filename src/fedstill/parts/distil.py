"""Distillation on the server: a student learns from an ensemble of the clients' models."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softmax

from fedstill.core.method import Env, Reply
from fedstill.core.record import State
from fedstill.core.value import Value, setting
from fedstill.data.samples import batches
from fedstill.parts.learner import Learner, Optimizer, frozen, optimizer_of, predict, weights_of


def soft_kl(targets: Tensor, logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(targets ‖ softmax(logits / t)), mean over the batch, times t²; targets are probabilities, zeros allowed.

    >>> soft_kl(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2)).item()  # log 2
    0.6931471824645996
    """
    gap = torch.xlogy(targets, targets) - targets * log_softmax(logits / temperature, -1)
    return gap.sum(-1).mean() * temperature**2


def opinions(env: Env, models: Sequence[tuple[State, int | None]], images: Tensor) -> Tensor:
    """Logits (models × images × classes) of many models, each given with whose architecture it has."""
    return torch.stack([predict(frozen(env.module(weights, of)), images) for weights, of in models])


def ensemble(logits: Tensor, weights: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Σ_k weight_{k,i} softmax(logits_{k,i} / t): models × images weights, equal ones when not given."""
    shares = softmax(logits / temperature, -1)
    return shares.mean(0) if weights is None else (weights.unsqueeze(-1) * shares).sum(0)


@dataclass(frozen=True)
class Lesson:
    """Images, and what the student should say of them (probabilities)."""

    images: Tensor
    targets: Tensor

    def loss(self, module: nn.Module, temperature: float = 1.0) -> float:
        """The module's distance from the targets, over all images."""
        return float(soft_kl(self.targets, predict(module, self.images), temperature))

    def split(self, env: Env, share: float) -> tuple["Lesson", "Lesson"]:
        """The lesson, and a part of it (at least one image) held out, by chance."""
        held = min(max(1, round(share * len(self.images))), len(self.images) - 1)
        order = torch.randperm(len(self.images), generator=env.stream("held out")).to(self.images.device)
        rest, part = order[held:], order[:held]
        return Lesson(self.images[rest], self.targets[rest]), Lesson(self.images[part], self.targets[part])


@dataclass(frozen=True)
class Patience:
    """Early stopping: the exam is taken `every` so many steps; `steps` of them without progress end the lesson."""

    exam: Lesson
    steps: int
    every: int = 10


def distil(
    env: Env,
    student: Learner,
    lesson: Lesson,
    *,
    batch: int,
    epochs: int,
    steps: int | None = None,
    temperature: float = 1.0,
    patience: Patience | None = None,
) -> int:
    """Bring the student to the lesson's targets in batches, and return the steps taken.

    The student's module keeps the mode it has (in evaluation mode BatchNorm's statistics stay the clients'). With
    patience, its weights at the end are those that did best in the exam, the first included.
    """
    alone = student.module.training and any(isinstance(p, nn.BatchNorm1d) for p in student.module.modules())
    index = batches(len(lesson.images), batch, epochs, env.stream("distil"), drop_single=alone)
    best, at = (patience.exam.loss(student.module, temperature), 0) if patience else (0.0, 0)
    kept: State = student.weights if patience else {}
    done = 0
    for chosen in islice(index, steps):
        where = chosen.to(lesson.images.device)
        student.step(soft_kl(lesson.targets[where], student(lesson.images[where]), temperature))
        done += 1
        if patience and done % patience.every == 0:
            loss = patience.exam.loss(student.module, temperature)
            if loss < best:
                best, at, kept = loss, done, student.weights
            elif done - at >= patience.steps:
                break
    if patience:
        student.module.load_state_dict(kept)
    return done


@dataclass(frozen=True)
class Distillation(Value):
    """How the server distils: fields shared by the methods, and the lesson they describe."""

    distill_lr: float = setting(1e-2, gt=0, doc="learning rate of distillation")
    distill_optimizer: Optimizer = setting("sgd", doc="sgd or adam, for distillation")
    distill_epochs: int = setting(10, ge=1, doc="passes over the distillation samples")
    distill_batch: int = setting(32, ge=1, doc="batch size of distillation")
    temperature: float = setting(1.0, gt=0, doc="t of the distillation")
    warm_up: int = setting(0, ge=0, doc="first rounds without distillation, while the generator learns")

    def distilled(self, env: Env, start: State, lesson: Lesson, head: bool = False) -> State:
        """The weights after the lesson; BatchNorm's statistics stay those of `start`, as the samples are not real.

        `head`: the samples are feature vectors, and the head alone learns from them.
        """
        if env.round < self.warm_up:
            return start
        module = env.module(start).eval()
        taught = module.head if head else module
        student = Learner(taught, optimizer_of(self.distill_optimizer, taught, self.distill_lr))
        batch, epochs = self.distill_batch, self.distill_epochs
        distil(env, student, lesson, batch=batch, epochs=epochs, temperature=self.temperature)
        return weights_of(module)


def uploads_of(replies: Sequence[Reply[Any]]) -> list[Any]:
    """The uploads of these replies, in their order."""
    return [reply.upload for reply in replies if reply.upload is not None]
