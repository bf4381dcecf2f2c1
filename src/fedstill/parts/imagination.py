"""Imagination: a generator on the client makes samples that excite a teacher, so that its knowledge needs no data.

The generator's losses are FedKF's (DAFL's): the teacher is to see all classes equally often, each surely, and with
strong features. What the client keeps of it is its weights and the state of its Adam.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.method import Env
from fedstill.core.record import State, record
from fedstill.core.rng import seeded
from fedstill.core.value import setting
from fedstill.models import build_generator
from fedstill.models.classifier import embedded
from fedstill.parts.adam import Adam
from fedstill.parts.learner import Learner, LocalTraining, Memory
from fedstill.parts.losses import activation, class_entropy, one_hot


@record
class Drawing:
    """What stays on a client of its generator: θ_k, and the state of its Adam."""

    generator: State
    memory: Memory


class Lesson(NamedTuple):
    """An imagined batch and what the teacher makes of it."""

    imagined: Tensor
    """x̂ = g(z)."""
    features: Tensor
    logits: Tensor
    """The teacher's logits."""
    learns: bool
    """Does the generator learn from it? Only then do gradients flow through teacher and generator."""


@dataclass(frozen=True)
class Imagining(LocalTraining):
    """What methods share whose clients imagine samples: the generator, how it learns, what is made of it."""

    needs_features: ClassVar[bool] = True
    gamma: float = setting(1.0, ge=0, doc="weight of the teacher's knowledge (γ)")
    lambda1: float = setting(0.1, ge=0, doc="weight of the one-hot loss (λ₁)")
    lambda2: float = setting(0.1, ge=0, doc="weight of the activation loss (λ₂)")
    generator: str = setting(
        "light", doc="light (any data), dafl or dcgan (images); noise: plain noise, nothing learnt"
    )
    channels: int | None = setting(None, ge=1, doc="width of the light generator")
    noise: int = setting(100, ge=1, doc="length of z")
    generator_lr: float | None = setting(
        None, gt=0, doc="Adam's rate for the generator (β); none: the generator's own, .02 for light, .001 for others"
    )
    imagined_batch: float = setting(
        1.0, gt=0, doc="imagined samples a batch, as a share of the batch size; less is cheaper"
    )
    generator_every: int = setting(1, ge=1, doc="the generator learns from every so-many-th batch; more is cheaper")

    def first_generator(self, env: Env) -> State:
        """The initial θ; nothing for plain noise."""
        generator = self.make_generator(env)
        return {} if generator is None else dict(generator.state_dict())

    def make_generator(self, env: Env) -> nn.Module | None:
        """g with the initial θ; None for plain noise."""
        if self.generator == "noise":
            return None
        with seeded(env.at(0).key("generator")):
            return build_generator(self.generator, env.kind, self.noise, self.channels)

    def imagined(self, env: Env, state: Drawing, count: int) -> Tensor | None:
        """What the client's generator makes of noise; its BatchNorm saw batches, so a whole batch is made."""
        generator = self.make_generator(env)
        if generator is None:
            return None
        generator.load_state_dict(state.generator)
        noise = torch.randn(max(64, count), self.noise, generator=env.stream("gallery"))
        with torch.no_grad():
            images: Tensor = generator.train()(noise)[:count]
        return images

    def generator_learner(self, env: Env, state: Drawing) -> Learner | None:
        """The generator as the client left it, with its Adam."""
        generator = self.make_generator(env)
        if generator is None:
            return None
        generator.load_state_dict(state.generator)
        generator.to(env.device).train()
        return Learner(generator, self.adam(generator)).recall(state.memory)

    def adam(self, generator: nn.Module) -> Adam:
        """Adam for the generator, at β."""
        return Adam(generator.parameters(), self.generator_lr or generator.lr)  # type: ignore[arg-type]

    def lesson(
        self, env: Env, teacher: Classifier, generator: Learner | None, stream: torch.Generator, number: int
    ) -> Lesson:
        """What a turn's batch `number` (from 0) distils: made once for both steps.

        Where the generator does not learn from it, nothing is kept for a backward pass.
        """
        learns = generator is not None and number % self.generator_every == 0
        with torch.set_grad_enabled(learns):
            imagined = self.imagine(env, generator, stream)
            features = teacher.features(imagined)
            return Lesson(imagined, features, teacher.head(features), learns)

    def imagine(self, env: Env, generator: Learner | None, stream: torch.Generator) -> Tensor:
        """x̂ = g(z), z ~ N(0, I); BatchNorm asks for two at least."""
        count = max(2, round(self.imagined_batch * self.batch))
        if generator is not None:
            return generator(torch.randn(count, self.noise, generator=stream).to(env.device))
        return env.kind.noise(count, stream).to(env.device)

    def generator_loss(
        self, env: Env, teacher_logits: Tensor, features: Tensor, student: Learner, imagined: Tensor
    ) -> Tensor:
        """L_G of an imagined batch: the `excitement` it causes in the teacher; a method may add the student's view.

        Args:
            env: the client's environment.
            teacher_logits: the teacher's logits of the batch.
            features: the teacher's features of it.
            student: the model that is taught.
            imagined: the batch.
        """
        return self.excitement(class_entropy(teacher_logits), teacher_logits, features)

    def excitement(self, entropy: Tensor, teacher_logits: Tensor, features: Tensor) -> Tensor:
        """L_G (FedKF, 5): `entropy` + λ₁ L_OH + λ₂ L_A on the teacher's logits and features of an imagined batch."""
        return entropy + self.lambda1 * one_hot(teacher_logits) + self.lambda2 * activation(features)


def together(student: Learner, x: Tensor, imagined: Tensor) -> tuple[Tensor, Tensor]:
    """The student's logits of the client's own samples and of imagined ones; in one pass where samples do not mix."""
    if student.private or any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in student.module.modules()):
        return student(x), student.freely(imagined)
    both = torch.cat([embedded(student.module, x), embedded(student.module, imagined)])
    real, fancied = torch.split(student(both), [len(x), len(imagined)])
    return real, fancied
