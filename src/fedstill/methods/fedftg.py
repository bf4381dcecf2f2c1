"""Zhang, Shen, Ding, Tao, Duan: Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID Federated
Learning. CVPR 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Broadcast
from fedstill.parts.conditional_generator import Gallery, Imagining
from fedstill.parts.distil import ensemble, soft_kl, uploads_of
from fedstill.parts.gather import Everyone, Gather, average
from fedstill.parts.labels import CountedUpdate, Counting, class_shares, counts_of, diversity, draw_labels
from fedstill.parts.learner import Learner, LocalTraining, Optimizer, frozen, optimizer_of, weights_of
from fedstill.parts.losses import cross_entropy


@record
class FineTuned:
    """The server's state: w, the average it was tuned from, the generator, and samples of it for reports."""

    weights: State
    average: State
    generator: State
    memory: Any
    gallery: Gallery


@methods.register("fedftg")
@dataclass(frozen=True)
class FedFTG(LocalTraining, Imagining, Counting, Method[FineTuned, None, Broadcast, CountedUpdate]):
    """The server fine-tunes the average on samples that a generator makes to be hard for it.

    Hard-sample mining, label sampling and class-wise ensemble; clients train as in FedAvg.
    """

    paper = "Zhang et al., Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID FL, CVPR 2022"
    private_learners = 1
    one_download = True
    generator_lr: float = setting(1e-2, gt=0, doc="Adam's rate for the generator")
    iterations: int = setting(10, ge=1, doc="turns of generator and student in a round")
    generator_steps: int = setting(1, ge=1, doc="steps of the generator in a turn")
    student_steps: int = setting(5, ge=1, doc="steps of the student in a turn")
    lambda_cls: float = setting(1.0, ge=0, doc="weight of the label's cross-entropy (λ_cls)")
    lambda_dis: float = setting(1.0, ge=0, doc="weight of diversity (λ_dis)")
    distill_lr: float = setting(1e-2, gt=0, doc="learning rate of fine-tuning")
    distill_optimizer: Optimizer = setting("sgd", doc="sgd or adam")
    distill_batch: int = setting(64, ge=2, doc="generated samples in a turn")
    profile: Literal["paper", "authors"] = setting("paper", doc="authors: as their public code, see the method page")
    gather: Gather = setting(Everyone(), doc="what the server does with the replies first")

    def init_server(self, env: Env) -> FineTuned:
        """w⁰ and the generator, from the seed."""
        weights, generator = env.initial(), weights_of(self.make_generator(env))
        return FineTuned(weights, weights, generator, self.gather.init(env, weights), {})

    def init_client(self, env: Env) -> None:
        """A client keeps nothing."""
        return

    def download(self, env: Env, server: FineTuned) -> Broadcast:
        """w."""
        return Broadcast(server.weights)

    def client(self, env: Env, state: None, down: Broadcast, data: Samples) -> tuple[None, CountedUpdate]:
        """Local epochs from w."""
        learner = self.learner(env, env.module(down.weights))
        self.train(env, learner, data)
        return None, CountedUpdate(learner.weights, data.counts(env.classes))

    def server(self, env: Env, server: FineTuned, replies: Sequence[Reply[CountedUpdate]]) -> FineTuned:
        """Average, then turns of the generator (harder samples) and of the student (the ensemble's view of them)."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return server
        start, counts, stream = average(kept), counts_of(uploads_of(kept)), env.stream("fine-tuning")
        teachers = [frozen(env.module(upload.weights)) for upload in uploads_of(kept)]
        module = env.module(start).eval()  # BatchNorm keeps the clients' statistics: the samples are not real
        student = Learner(module, optimizer_of(self.distill_optimizer, module, self.distill_lr))
        generator = self.generator_learner(env, server.generator)
        for _ in range(self.iterations):
            y = draw_labels(counts.sum(0), self.distill_batch, stream)
            z = torch.randn(self.distill_batch, self.noise, generator=stream).to(env.device)
            shares = class_shares(counts)[:, y].to(env.device)  # α^{k,y}, clients × samples
            for _ in range(self.generator_steps):
                self.harden(generator, z, y.to(env.device), student.module, teachers, shares)
            with torch.no_grad():
                made = generator.module.eval()(z, y.to(env.device))
                targets = ensemble(torch.stack([teacher(made) for teacher in teachers]), shares)
            generator.module.train()
            for _ in range(self.student_steps):
                student.step(soft_kl(targets, student(made)))
        gallery = self.exhibit(env, server.gallery, generator.weights)
        return FineTuned(student.weights, start, generator.weights, memory, gallery)

    def harden(
        self,
        generator: Learner,
        z: Tensor,
        y: Tensor,
        student: nn.Module,
        teachers: Sequence[nn.Module],
        shares: Tensor,
    ) -> None:
        """A generator step on −L_md + λ_cls L_cls + λ_dis L_dis; the authors step for each client in turn."""
        for turn in [[k] for k in range(len(teachers))] if self.profile == "authors" else [range(len(teachers))]:
            made = generator.module(z, y)
            mine = student(made)
            loss = self.lambda_dis * diversity(z, made) * len(turn) / len(teachers)
            for k in turn:
                teacher_logits = teachers[k](made)
                loss = loss - (shares[k] * self.gap(teacher_logits, mine)).mean()
                loss = loss + self.lambda_cls * (shares[k] * cross_entropy(teacher_logits, y, reduction="none")).mean()
            generator.step(loss)

    def gap(self, teacher: Tensor, student: Tensor) -> Tensor:
        """How far the student is from a client's model on each sample: KL, or the authors' mean |Δ logits|."""
        if self.profile == "authors":
            return (student - teacher.detach()).abs().mean(-1)
        a, b = log_softmax(teacher, -1), log_softmax(student, -1)
        return (a.exp() * (a - b)).sum(-1)

    def models(self, env: Env, server: FineTuned) -> Mapping[str, State]:
        """`global`, fine-tuned, and `average`, before it."""
        return {"global": server.weights, "average": server.average, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: FineTuned) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)
