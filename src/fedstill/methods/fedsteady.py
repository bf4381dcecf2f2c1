"""FedSteady: clients neither drift from one another nor forget what they do not see.

What FedKF, FedDyn, FedNTD and logit calibration each mend, put together so that none undoes another, and each as
strong as a client needs it; the method page has the equations that the numbers here refer to, and what each is worth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Global
from fedstill.parts.calibration import lacking, log_shares
from fedstill.parts.dynamic import Bend, Corrected, Dynamic, blank, turned
from fedstill.parts.gather import Gather, Remember, Update, mean
from fedstill.parts.imagination import Drawing, Imagining, together
from fedstill.parts.learner import frozen
from fedstill.parts.losses import kl, kl_each
from fedstill.parts.loudness import hushed
from fedstill.parts.not_true import not_true


@record
class Guidance:
    """What goes down: w, to start from, and ŵ, the mean of all clients' last models, to learn from."""

    weights: State = carries(Carries.WEIGHTS)
    teacher: State


@record
class Mind(Bend, Drawing):
    """What stays on a client: d_k, what the gather keeps, and its generator with the state of its Adam."""


@record
class Lacking(Update):
    """What leaves a client: its weights, and κ_k."""

    lack: float = carries(Carries.LACK)


@record
class Steady(Corrected):
    """The server's state: FedDyn's, v, which follows w, and how long each client's last step was."""

    steady: State
    lengths: Mapping[int, float]


@methods.register("fedsteady")
@dataclass(frozen=True)
class FedSteady(Imagining, Dynamic):
    """Clients neither drift apart nor forget: the more classes one lacks, the more it is held and taught.

    Calibrated local loss; bend and teaching by the model of all clients grow with κ; long steps count less.
    """

    made_for = ("labels differ much from client to client", "few clients are active in a round")
    paper = "fedstill: parts of FedKF, FedDyn, FedNTD and logit calibration together"
    judged_by = "steady"
    one_download = True
    alpha: float = setting(0.03, ge=0, doc="strength of the regularisation against drift (α), times κ")
    beta: float = setting(1.0, ge=0, doc="weight of the teacher's view of the other classes (β), times κ")
    gamma: float = setting(0.3, ge=0, doc="weight of the teacher's knowledge on imagined samples (γ), times κ")
    imagined_batch: float = setting(0.25, gt=0, doc="imagined samples a batch, as a share of the batch size")
    generator_every: int = setting(2, ge=1, doc="the generator learns from every so-many-th batch")
    tau: float = setting(0.5, ge=0, doc="strength of the calibration by label shares (τ)")
    smoothing: float = setting(0.2, gt=0, le=1, doc="part of the label shares that is uniform (u); less is a lack")
    lack: float | None = setting(None, ge=0, le=1, doc="κ of every client; none: each its own, from its labels")
    loudest: float | None = setting(3.0, gt=0, doc="times the median step that one may be long (c); none: any length")
    inertia: float = setting(0.5, ge=0, lt=1, doc="how much of v stays when it follows w (ρ)")
    weighting: Literal["clients", "samples"] = setting("samples", doc="do clients count by samples, or all the same?")
    gather: Gather = setting(Remember(start="seen"), doc="what the server does with the replies")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loudest is not None and isinstance(self.gather, Remember) and self.gather.slots == "client":
            raise UsageError(
                f"gather = remember: slots = client adds up steps that loudest = {self.loudest:g} cannot shorten; "
                "use slots = server or loudest = none"
            )

    def mixing(self) -> str | None:
        """Calibration and κ use how many samples of each class there are."""
        if self.tau:
            return f"tau = {self.tau:g} uses how many samples of each class there are; set tau=0 and a lack"
        if self.lack is None:
            return "lack = none is read off the labels; set lack to a number from 0 to 1"
        return super().mixing()

    @classmethod
    def upload_type(cls) -> type:
        """Weights and κ, unless κ is given."""
        return Lacking

    def uploads(self) -> type:
        """Where κ is given, weights alone."""
        return Lacking if self.lack is None else self.gather.sends(Update)

    def init_server(self, env: Env) -> Steady:
        """w⁰, s = 0; v is w until somebody answered."""
        first = super().init_server(env)
        return Steady(first.weights, first.memory, first.correction, first.weights, {})

    def init_client(self, env: Env) -> Mind:
        """d_k = 0, and a generator, the same for all."""
        return Mind(generator=self.first_generator(env), memory={}, gradient=blank(env), kept=None)

    def download(self, env: Env, server: Global) -> Guidance:
        """w and ŵ; without `Remember` w itself teaches."""
        return Guidance(server.weights, self.gather.models(env, server.memory).get("overall", server.weights))

    def client(self, env: Env, state: Mind, down: Guidance, data: Samples) -> tuple[Mind, Update]:
        """Steps down (2), and down (1), (3), (4) as far as it lacks classes; then d_k loses the way that was gone."""
        counts = data.counts(env.classes)
        lack = lacking(counts, self.smoothing) if self.lack is None else self.lack  # κ_k
        own = replace(self, alpha=lack * self.alpha, beta=lack * self.beta, gamma=lack * self.gamma)
        student = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.teacher))
        generator = self.generator_learner(env, state) if own.gamma else None
        anchor = self.anchor(env, student, state)
        margin = log_shares(counts, self.tau, self.smoothing).to(env.device)
        stream = env.stream("noise")
        for number, (x, y) in enumerate(self.batches(env, data, student.module)):
            if not own.gamma:
                own.bent_step(student, anchor, own.own_loss(student(x), y, margin, teacher, x))
                continue
            lesson = self.lesson(env, teacher, generator, stream, number)
            if generator is not None and lesson.learns:
                generator.step(self.generator_loss(env, lesson.logits, lesson.features, student, lesson.imagined))
            real, fancied = together(student, x, lesson.imagined.detach())
            private = own.own_loss(real, y, margin, teacher, x)
            own.bent_step(student, anchor, private, own.gamma * kl(lesson.logits.detach(), fancied))
        weights = student.weights
        kept, upload = self.gather.outgoing(env, state.kept, weights)
        after = replace(state, gradient=turned(state, weights, down.weights), kept=kept)
        if generator is not None:
            after = replace(after, generator=generator.weights, memory=generator.memory)
        return after, Lacking(weights, lack) if self.lack is None else upload

    def own_loss(self, logits: Tensor, y: Tensor, margin: Tensor, teacher: Classifier, x: Tensor) -> Tensor:
        """(2) + (3): calibrated cross-entropy, and the teacher's view of the other classes as far as it is right."""
        loss = cross_entropy(logits + margin, y)
        if not self.beta:
            return loss
        with torch.no_grad():
            teacher_logits = teacher(x)
            belief = softmax(teacher_logits, -1).gather(1, y[:, None]).squeeze(1)
        return loss + self.beta * (belief * kl_each(not_true(teacher_logits, y), not_true(logits, y))).mean()

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Global:
        """(5) on the replies, FedDyn's step with them; then v follows w."""
        assert isinstance(server, Steady)
        lengths, heard = hushed(replies, server.weights, server.lengths, self.loudest or inf)
        after = super().server(env, server, heard)
        assert isinstance(after, Corrected)
        inertia = self.inertia if server.lengths else 0.0
        steady = mean([server.steady, after.weights], [inertia, 1 - inertia])
        return Steady(after.weights, after.memory, after.correction, steady, lengths)

    def bending(self, reply: Reply[Update]) -> float:
        """κ_k."""
        return reply.upload.lack if isinstance(reply.upload, Lacking) else self.lack or 0.0

    def template(self, env: Env) -> Update:
        """Weights of the global model's form, and a number."""
        return Lacking(env.form(), 0.0) if self.lack is None else super().template(env)

    def objection(self, env: Env, upload: Update) -> str | None:
        """κ is between 0 and 1."""
        lack = upload.lack if isinstance(upload, Lacking) else 0.0
        return None if 0 <= lack <= 1 else f"lack = {lack:g}: must be from 0 to 1"

    def models(self, env: Env, server: Global) -> Mapping[str, State]:
        """`active` (w), `overall` (ŵ, with `Remember`) and `steady` (v)."""
        assert isinstance(server, Steady)
        return {**super().models(env, server), "steady": server.steady}
