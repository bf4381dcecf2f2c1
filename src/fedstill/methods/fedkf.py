"""FedKF: every client's last model counts in the teacher, and each client distils it without data.

Zhou, Lei, Yang, Shi, Zhang, Shi: Handling Data Heterogeneity for IoT Devices in Federated Learning: A Knowledge
Fusion Approach. IEEE Internet of Things Journal.
Equation numbers are the paper's; the method page lists every choice and deviation.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.method import Env, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.rng import seeded
from fedstill.core.value import setting
from fedstill.data.kinds import Image
from fedstill.data.samples import Samples
from fedstill.models import build_generator
from fedstill.models.classifier import embedded
from fedstill.parts.averaging import Averaging, Global
from fedstill.parts.gather import Remember, Update
from fedstill.parts.learner import Learner, Memory, frozen
from fedstill.parts.losses import activation, class_entropy, cross_entropy, kl, one_hot


@record
class Teaching:
    """What goes down: w, and the teacher ŵ (None: w itself is the teacher, FedKF−)."""

    weights: State = carries(Carries.WEIGHTS)
    teacher: State | None


@record
class Imagination:
    """What stays on a client: its generator θ_k with the state of its Adam, and what the gather keeps."""

    generator: State
    memory: Memory
    kept: Any


class Lesson(NamedTuple):
    """An imagined batch and what the teacher makes of it."""

    imagined: Tensor
    """x̂ = g(z)."""
    features: Tensor
    wisdom: Tensor
    """The teacher's logits."""
    learns: bool
    """Does the generator learn from it? Only then do gradients flow through teacher and generator."""


@dataclass(frozen=True)
class KnowledgeFusion(Averaging):
    """Algorithm 1. The server averages the active (line 9) and, in the gather, all slots (lines 7, 10).

    `FedKF` and `FedKFMinus` differ only in who teaches.
    """

    paper = (
        "Zhou et al., Handling Data Heterogeneity for IoT Devices in Federated Learning: A Knowledge Fusion Approach"
    )
    private_learners = 1
    server_sums = "samples"
    gamma: float = setting(1.0, ge=0, doc="weight of the teacher's knowledge (γ, 8)")
    lambda1: float = setting(0.1, ge=0, doc="weight of the one-hot loss (λ₁, 5)")
    lambda2: float = setting(0.1, ge=0, doc="weight of the activation loss (λ₂, 5)")
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
    profile: Literal["paper", "authors"] = setting("paper", doc="authors: as their public code, see the method page")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.profile == "authors" and isinstance(self.gather, Remember):
            object.__setattr__(self, "gather", replace(self.gather, start="seen"))

    def init_client(self, env: Env) -> Imagination:
        """θ_k ← θ, the same for all (line 2)."""
        generator = self.make_generator(env)
        return Imagination({} if generator is None else dict(generator.state_dict()), {}, None)

    def make_generator(self, env: Env) -> nn.Module | None:
        """g with the initial θ; None for plain noise."""
        if self.generator == "noise":
            return None
        with seeded(env.at(0).key("generator")):
            return build_generator(self.generator, env.kind, self.noise, self.channels)

    def imagined(self, env: Env, state: Imagination, count: int) -> Tensor | None:
        """What the client's generator makes of noise; its BatchNorm saw batches, so a whole batch is made."""
        generator = self.make_generator(env)
        if generator is None:
            return None
        generator.load_state_dict(state.generator)
        noise = torch.randn(max(64, count), self.noise, generator=env.stream("gallery"))
        with torch.no_grad():
            found: Tensor = generator.train()(noise)[:count]
        return found

    def client(self, env: Env, state: Imagination, down: Teaching, data: Samples) -> tuple[Imagination, Update]:
        """ClientUpdate (lines 13–22): generator and local model in step, batch by batch."""
        student = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.teacher or down.weights))
        artist = self.artist(env, state)
        alone = not self.gamma or (self.profile == "authors" and env.round == 0)
        stream = env.stream("noise")
        for number, (x, y) in enumerate(self.pace(env).batches(env, data, student.module)):
            if alone:
                student.step(cross_entropy(student(x), y))
                continue
            lesson = self.lesson(env, teacher, artist, stream, number)
            pair = (x, y, lesson.imagined.detach(), lesson.wisdom.detach())
            if self.rivals(env):  # the generator looks for what the student does not know even after its step
                student.step(*self.student_loss(student, *pair))
            if artist is not None and lesson.learns:
                artist.step(self.generator_loss(env, lesson.wisdom, lesson.features, student, lesson.imagined))
            if not self.rivals(env):
                student.step(*self.student_loss(student, *pair))
        kept, upload = self.gather.outgoing(env, state.kept, student.weights)
        if artist is None:
            return Imagination({}, {}, kept), upload
        return Imagination(artist.weights, artist.memory, kept), upload

    def artist(self, env: Env, state: Imagination) -> Learner | None:
        """The generator as the client left it, with its Adam."""
        generator = self.make_generator(env)
        if generator is None:
            return None
        generator.load_state_dict(state.generator)
        generator.to(env.device).train()
        return Learner(generator, self.adam(generator)).recall(state.memory)

    def adam(self, generator: nn.Module) -> torch.optim.Adam:
        """Adam for the generator, at β."""
        return torch.optim.Adam(generator.parameters(), self.generator_lr or generator.lr)  # type: ignore[arg-type]

    def lesson(
        self, env: Env, teacher: Classifier, artist: Learner | None, stream: torch.Generator, number: int
    ) -> Lesson:
        """What a turn's batch `number` (from 0) distils: made once for both steps.

        Where the generator does not learn from it, nothing is kept for a backward pass.
        """
        learns = artist is not None and number % self.generator_every == 0
        with torch.set_grad_enabled(learns):
            imagined = self.imagine(env, artist, stream)
            features = teacher.features(imagined)
            return Lesson(imagined, features, teacher.head(features), learns)

    def imagine(self, env: Env, artist: Learner | None, stream: torch.Generator) -> Tensor:
        """x̂ = g(z), z ~ N(0, I); BatchNorm asks for two at least."""
        count = max(min(2, self.batch), round(self.imagined_batch * self.batch))
        if artist is not None:
            return artist(torch.randn(count, self.noise, generator=stream).to(env.device))
        return env.kind.noise(count, stream).to(env.device)

    def generator_loss(self, env: Env, wisdom: Tensor, features: Tensor, student: Learner, imagined: Tensor) -> Tensor:
        """(5) L_G = L_IE + λ₁ L_OH + λ₂ L_A on the teacher's view of the imagined batch."""
        entropy = class_entropy(wisdom)
        if self.profile == "authors":
            entropy = 1 + entropy / math.log(env.classes)
        loss = entropy + self.lambda1 * one_hot(wisdom) + self.lambda2 * activation(features)
        if self.rivals(env):  # the teacher is a constant here: the student alone is to be put in doubt
            loss = loss - self.gamma * kl(wisdom.detach(), student.freely(imagined))
        return loss

    def rivals(self, env: Env) -> bool:
        """Does the generator also get −γ·KL, as in the authors' code on colour images?"""
        return self.profile == "authors" and isinstance(env.kind, Image) and env.shape[0] == 3

    def student_loss(
        self, student: Learner, x: Tensor, y: Tensor, imagined: Tensor, wisdom: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(8) L_CE and γ L_KL: local knowledge from real samples, global knowledge from imagined ones."""
        if student.private or any(isinstance(p, nn.modules.batchnorm._BatchNorm) for p in student.module.modules()):
            real, fancied = student(x), student.freely(imagined)
        else:  # nothing in the module mixes samples: one pass serves both
            both = torch.cat([embedded(student.module, x), embedded(student.module, imagined)])
            real, fancied = torch.split(student(both), [len(x), len(imagined)])
        return cross_entropy(real, y), self.gamma * kl(wisdom, fancied)

    def private_steps(self, env: Env, count: int) -> int:
        """As many as `pace` gives; imagined samples cost nothing."""
        return self.pace(env).steps(count)

    def pace(self, env: Env) -> "KnowledgeFusion":
        """The authors give every client the same number of steps; the paper gives it E epochs of its own data."""
        if self.profile == "paper":
            return self
        steps = self.epochs * max(1, sum(env.sizes) // (env.clients * self.batch))
        return replace(self, local_steps=steps)


@methods.register("fedkf")
@dataclass(frozen=True)
class FedKF(KnowledgeFusion):
    """The overall-clients aggregate ŵ teaches; w and ŵ go down."""

    one_download = True

    def download(self, env: Env, server: Global) -> Teaching:
        """w and ŵ (line 6)."""
        return Teaching(server.weights, self.gather.models(env, server.memory).get("overall"))


@methods.register("fedkf-minus")
@dataclass(frozen=True)
class FedKFMinus(KnowledgeFusion):
    """The active model w teaches: no extra download."""

    one_download = True

    def download(self, env: Env, server: Global) -> Teaching:
        """w alone."""
        return Teaching(server.weights, None)
