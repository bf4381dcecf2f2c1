"""One round: the server makes samples from the clients' models alone, and distils the models into one.

A generator, begun anew in every generation, learns to make samples that the ensemble is sure of and the student is not;
they join a pool, and the student learns from the ensemble on all of it. DENSE and Co-Boosting differ in what makes a
sample hard and in how the ensemble weighs its members. `fuse` knows no clients: models that exist already will do.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from fedstill.core.errors import unknown
from fedstill.core.method import Env
from fedstill.core.record import State
from fedstill.core.rng import seeded
from fedstill.core.value import Value, setting
from fedstill.models.generator import build_generator
from fedstill.models.registry import generators
from fedstill.parts.distil import soft_kl
from fedstill.parts.learner import Learner, frozen, minibatches, refuses_one


@dataclass(frozen=True)
class Fused:
    """The outcome: the student's weights, the ensemble's, and the share of samples on which both agree."""

    weights: State
    shares: Tensor
    agreement: float
    made: Tensor


@dataclass(frozen=True)
class OneShot(Value, ABC):
    """How models are fused into one without data; a method says what makes a sample hard."""

    noise: int = setting(100, ge=1, doc="length of z")
    generator: str = setting("light", doc="light (any data), or an image generator: dafl, dcgan")
    channels: int | None = setting(None, ge=1, doc="width of the generator")
    generator_lr: float = setting(1e-3, gt=0, doc="Adam's rate for generator and noise")
    synthesis_steps: int = setting(30, ge=1, doc="steps of the generator in a generation")
    generations: int = setting(40, ge=1, doc="how often samples are made and the student taught")
    synthetic: int = setting(128, ge=2, doc="samples made in a generation; all are kept")
    distill_lr: float = setting(0.01, gt=0, doc="learning rate of the student (falls to 0 by a cosine)")
    distill_batch: int = setting(128, ge=2, doc="batch size of the student")
    temperature: float = setting(4.0, gt=0, doc="temperature of the distillation")
    lambda_bn: float = setting(1.0, ge=0, doc="weight of the distance from BatchNorm's statistics (λ₁)")
    lambda_div: float = setting(0.5, ge=0, doc="weight of what the student does not know yet (λ₂)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generator not in generators:
            raise unknown("generator", self.generator, generators)

    @abstractmethod
    def label_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """How far the ensemble's logits are from the wanted labels."""

    @abstractmethod
    def challenge(self, ensemble: Tensor, student: Tensor) -> Tensor:
        """How much the student differs from the ensemble: what the generator is to make larger."""

    @abstractmethod
    def hardened(self, inputs: Tensor, ensemble: "Ensemble", stream: torch.Generator) -> Tensor:
        """The samples as the student gets them."""

    @abstractmethod
    def reweighted(self, ensemble: "Ensemble", batches: Iterator[tuple[Tensor, Tensor]], generation: int) -> Tensor:
        """The members' shares in the next generation."""

    def fuse(self, env: Env, teachers: Sequence[nn.Module], student: nn.Module) -> Fused:
        """One model out of `teachers` (each takes the same inputs and gives logits of the same classes).

        `student`: the module to be taught, which is changed in place.
        """
        members = [frozen(teacher.to(env.device)) for teacher in teachers]
        ensemble = Ensemble(members, torch.full((len(members),), 1 / len(members), device=env.device))
        student = student.to(env.device)
        optimizer = torch.optim.SGD(student.parameters(), lr=self.distill_lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.generations)
        learner, stream = Learner(student, optimizer), env.stream("one shot")
        inputs, labels = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        for generation in range(self.generations):
            made, y = self.generate(env, ensemble, student.eval(), stream)
            if generation:
                pool = minibatches(env, f"shares {generation}", inputs, labels, size=self.distill_batch)
                ensemble = Ensemble(members, self.reweighted(ensemble, pool, generation))
            inputs, labels = (made, y) if not generation else (torch.cat([inputs, made]), torch.cat([labels, y]))
            student.train()
            single = refuses_one(student)
            lessons = f"distil {generation}"
            for x, _ in minibatches(env, lessons, inputs, labels, size=self.distill_batch, drop_single=single):
                x = self.hardened(x, ensemble, stream)
                with torch.no_grad():
                    targets = softmax(ensemble(x) / self.temperature, -1)
                learner.step(soft_kl(targets, learner(x), self.temperature))
            schedule.step()
        with torch.no_grad():
            agreed = ensemble(inputs).argmax(-1) == student.eval()(inputs).argmax(-1)
        return Fused(learner.weights, ensemble.shares.cpu(), float(agreed.float().mean()), inputs[-self.synthetic :])

    def generate(
        self, env: Env, ensemble: "Ensemble", student: nn.Module, stream: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A batch of samples and the labels they were made for: the best that a fresh generator came to."""
        with seeded(int(torch.randint(2**62, (), generator=stream))):
            generator = build_generator(self.generator, env.kind, self.noise, self.channels).to(env.device).train()
        z = torch.randn(self.synthetic, self.noise, generator=stream).to(env.device).requires_grad_()
        y = torch.randint(env.classes, (self.synthetic,), generator=stream).to(env.device)
        adam = torch.optim.Adam([*generator.parameters(), z], lr=self.generator_lr, betas=(0.5, 0.999))
        learner = Learner(generator, adam)  # the noise is learnt too
        best, least = generator(z).detach(), float("inf")
        for _ in range(self.synthesis_steps):
            with statistics(ensemble.members) as apart:
                made = generator(z)
                teacher_logits = ensemble(made)
            loss = self.label_loss(teacher_logits, y) - self.lambda_div * self.challenge(teacher_logits, student(made))
            if self.lambda_bn and apart:
                loss = loss + self.lambda_bn * torch.stack(apart).sum() / len(ensemble.members)
            if loss.item() < least:
                best, least = made.detach(), loss.item()
            learner.step(loss)
        return best, y


class Ensemble:
    """Members' logits, weighted: Σ_k share_k f_k(x)."""

    def __init__(self, members: Sequence[nn.Module], shares: Tensor) -> None:
        self.members = members
        self.shares = shares

    def __call__(self, x: Tensor) -> Tensor:
        """The ensemble's logits."""
        return torch.einsum("k,knc->nc", self.shares, torch.stack([member(x) for member in self.members]))


@contextmanager
def statistics(members: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Inside, the list grows by ‖μ(batch) − μ_l‖ + ‖σ²(batch) − σ²_l‖ for every BatchNorm layer l that is passed."""
    apart: list[Tensor] = []

    def compare(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        x = inputs[0].transpose(0, 1).flatten(1)
        mean, variance = x.mean(1), x.var(1, unbiased=False)
        kept_mean, kept_variance = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        apart.append((mean - kept_mean).norm() + (variance - kept_variance).norm())

    layers = [layer for member in members for layer in member.modules() if _has_statistics(layer)]
    handles = [layer.register_forward_hook(compare) for layer in layers]
    try:
        yield apart
    finally:
        for handle in handles:
            handle.remove()


def _has_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.running_mean is not None
