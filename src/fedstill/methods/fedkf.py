"""Zhou, Lei, Yang, Shi, Zhang, Shi: Handling Data Heterogeneity for IoT Devices in Federated Learning: A Knowledge
Fusion Approach. IEEE Internet of Things Journal.
Equation numbers are the paper's; the method page lists every choice and deviation.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedstill.core.method import Env, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.kinds import Image
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Global
from fedstill.parts.gather import Remember, Update
from fedstill.parts.imagination import Drawing, Imagining, together
from fedstill.parts.learner import Learner, frozen
from fedstill.parts.losses import class_entropy, cross_entropy, kl


@record
class Teaching:
    """What goes down: w, and the teacher ŵ (None: w itself is the teacher, FedKF−)."""

    weights: State = carries(Carries.WEIGHTS)
    teacher: State | None


@record
class Imagination(Drawing):
    """What stays on a client: its generator θ_k with the state of its Adam, and what the gather keeps."""

    kept: Any


@dataclass(frozen=True)
class KnowledgeFusion(Imagining, Averaging):
    """Algorithm 1. The server averages the active (line 9) and, in the gather, all slots (lines 7, 10).

    `FedKF` and `FedKFMinus` differ only in who teaches.
    """

    paper = (
        "Zhou et al., Handling Data Heterogeneity for IoT Devices in Federated Learning: A Knowledge Fusion Approach"
    )
    judged_by = "overall"  # line 10: ŵ is what comes out
    private_learners = 1
    server_sums = "samples"
    profile: Literal["paper", "authors"] = setting("paper", doc="authors: as their public code, see the method page")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.profile == "authors" and isinstance(self.gather, Remember):
            object.__setattr__(self, "gather", replace(self.gather, start="seen"))

    def init_client(self, env: Env) -> Imagination:
        """θ_k ← θ, the same for all (line 2)."""
        return Imagination(self.first_generator(env), {}, None)

    def client(self, env: Env, state: Imagination, down: Teaching, data: Samples) -> tuple[Imagination, Update]:
        """ClientUpdate (lines 13–22): generator and local model in step, batch by batch."""
        student = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.teacher or down.weights))
        generator = self.generator_learner(env, state)
        alone = not self.gamma or (self.profile == "authors" and env.round == 0)
        stream = env.stream("noise")
        for number, (x, y) in enumerate(self.pace(env).batches(env, data, student.module)):
            if alone:
                student.step(cross_entropy(student(x), y))
                continue
            lesson = self.lesson(env, teacher, generator, stream, number)
            pair = (x, y, lesson.imagined.detach(), lesson.logits.detach())
            if self.rivals(env):  # the generator looks for what the student does not know even after its step
                student.step(*self.student_loss(student, *pair))
            if generator is not None and lesson.learns:
                generator.step(self.generator_loss(env, lesson.logits, lesson.features, student, lesson.imagined))
            if not self.rivals(env):
                student.step(*self.student_loss(student, *pair))
        kept, upload = self.gather.outgoing(env, state.kept, student.weights)
        if generator is None:
            return Imagination({}, {}, kept), upload
        return Imagination(generator.weights, generator.memory, kept), upload

    def generator_loss(
        self, env: Env, teacher_logits: Tensor, features: Tensor, student: Learner, imagined: Tensor
    ) -> Tensor:
        """(5) L_G = L_IE + λ₁ L_OH + λ₂ L_A on the teacher's view of the imagined batch."""
        entropy = class_entropy(teacher_logits)
        if self.profile == "authors":
            entropy = 1 + entropy / math.log(env.classes)
        loss = self.excitement(entropy, teacher_logits, features)
        if self.rivals(env):  # the teacher is a constant here: the student alone is to be put in doubt
            loss = loss - self.gamma * kl(teacher_logits.detach(), student.freely(imagined))
        return loss

    def rivals(self, env: Env) -> bool:
        """Does the generator also get −γ·KL, as in the authors' code on colour images?"""
        return self.profile == "authors" and isinstance(env.kind, Image) and env.shape[0] == 3

    def student_loss(
        self, student: Learner, x: Tensor, y: Tensor, imagined: Tensor, teacher_logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(8) L_CE and γ L_KL: local knowledge from real samples, global knowledge from imagined ones."""
        real, fancied = together(student, x, imagined)
        return cross_entropy(real, y), self.gamma * kl(teacher_logits, fancied)

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
    """Every client's last model counts in the teacher, and each client distils it on samples that it generates.

    The overall-clients aggregate ŵ teaches; w and ŵ go down.
    """

    made_for = ("labels differ much from client to client", "few clients are active in a round")
    one_download = True

    def download(self, env: Env, server: Global) -> Teaching:
        """w and ŵ (line 6)."""
        return Teaching(server.weights, self.gather.models(env, server.memory).get("overall"))


@methods.register("fedkf-minus")
@dataclass(frozen=True)
class FedKFMinus(KnowledgeFusion):
    """FedKF whose teacher is the active clients' average itself: no extra download."""

    made_for = ("few clients are active in a round",)
    one_download = True

    def download(self, env: Env, server: Global) -> Teaching:
        """w alone."""
        return Teaching(server.weights, None)
