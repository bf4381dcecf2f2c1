"""FedSteady: clients neither drift from one another nor forget what they do not see.

What FedKF, FedDyn, FedNTD and logit calibration each mend, put together so that none undoes another; the method page
has the equations that the numbers here refer to, and what each part is worth.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from fedstill.core.classifier import Classifier
from fedstill.core.method import Env, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Global
from fedstill.parts.calibration import log_shares
from fedstill.parts.dynamic import Bend, Dynamic, blank, turned
from fedstill.parts.gather import Gather, Remember, Update
from fedstill.parts.imagination import Drawing, Imagining, together
from fedstill.parts.learner import frozen
from fedstill.parts.losses import class_entropy, kl, kl_each
from fedstill.parts.not_true import not_true


@record
class Guidance:
    """What goes down: w, to start from, and ŵ, the mean of all clients' last models, to learn from."""

    weights: State = carries(Carries.WEIGHTS)
    teacher: State


@record
class Mind(Bend, Drawing):
    """What stays on a client: d_k, what the gather keeps, and its generator with the state of its Adam."""


@methods.register("fedsteady")
@dataclass(frozen=True)
class FedSteady(Imagining, Dynamic):
    """Bent, calibrated local loss; the model of all clients teaches, on real samples as far as it is right there."""

    paper = "fedstill: the parts of FedKF, FedDyn, FedNTD and logit calibration that add up"
    alpha: float = setting(0.03, ge=0, doc="strength of the regularisation against drift (α)")
    tau: float = setting(0.5, ge=0, doc="strength of the calibration by label shares (τ)")
    smoothing: float = setting(0.2, gt=0, le=1, doc="part of the label shares that is uniform (s)")
    beta: float = setting(1.0, ge=0, doc="weight of the not-true distillation on real samples (β)")
    gamma: float = setting(0.3, ge=0, doc="weight of the teacher's knowledge on imagined samples (γ)")
    imagined_batch: float = setting(
        0.25, gt=0, doc="imagined samples a batch, as a share of the batch size; less is cheaper"
    )
    gather: Gather = setting(Remember(start="seen"), doc="what the server does with the replies")

    def mixing(self) -> str | None:
        """Calibration uses how many samples of each class there are."""
        return f"tau = {self.tau:g}" if self.tau else super().mixing()

    def init_client(self, env: Env) -> Mind:
        """d_k = 0, and θ_k ← θ, the same for all."""
        return Mind(generator=self.first_generator(env), memory={}, gradient=blank(env), kept=None)

    def download(self, env: Env, server: Global) -> Guidance:
        """w and ŵ; without `Remember` w itself teaches."""
        return Guidance(server.weights, self.gather.models(env, server.memory).get("overall", server.weights))

    def client(self, env: Env, state: Mind, down: Guidance, data: Samples) -> tuple[Mind, Update]:
        """Every batch: an imagined one, a step of the generator, a step of the local model."""
        student = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.teacher))
        artist = self.artist(env, state) if self.gamma else None
        anchor = self.anchor(env, student, state)
        margin = log_shares(data.counts(env.classes), self.tau, self.smoothing).to(env.device)
        stream = env.stream("noise")
        for number, (x, y) in enumerate(self.batches(env, data, student.module)):
            if not self.gamma:
                self.bent_step(student, anchor, self.own_loss(student(x), y, margin, teacher, x))
                continue
            lesson = self.lesson(env, teacher, artist, stream, number)
            if artist is not None and lesson.learns:
                artist.step(self.excitement(class_entropy(lesson.wisdom), lesson.wisdom, lesson.features))
            real, fancied = together(student, x, lesson.imagined.detach())
            own = self.own_loss(real, y, margin, teacher, x)
            self.bent_step(student, anchor, own, self.gamma * kl(lesson.wisdom.detach(), fancied))
        weights = student.weights
        kept, upload = self.gather.outgoing(env, state.kept, weights)
        after = replace(state, gradient=turned(state, weights, down.weights), kept=kept)
        if artist is None:
            return after, upload
        return replace(after, generator=artist.weights, memory=artist.memory), upload

    def own_loss(self, logits: Tensor, y: Tensor, margin: Tensor, teacher: Classifier, x: Tensor) -> Tensor:
        """(2) + (3): calibrated cross-entropy, and the teacher's view of the other classes as far as it is right."""
        loss = cross_entropy(logits + margin, y)
        if not self.beta:
            return loss
        with torch.no_grad():
            wisdom = teacher(x)
            belief = softmax(wisdom, -1).gather(1, y[:, None]).squeeze(1)
        return loss + self.beta * (belief * kl_each(not_true(wisdom, y), not_true(logits, y))).mean()
