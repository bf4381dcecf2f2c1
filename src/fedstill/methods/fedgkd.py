"""Yao, Pan, Dai, Wan, Ding, Yu, Jin, Xu, Sun: FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge
Distillation. IEEE Transactions on Computers 2024.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Global
from fedstill.parts.gather import Update, average, caught_up, mean
from fedstill.parts.learner import frozen
from fedstill.parts.losses import cross_entropy, kl


@record
class Recent(Global):
    """The server's state: also the buffer of the last global models (w last, w⁰ never)."""

    buffer: tuple[State, ...]


@record
class Lesson:
    """What goes down: w, the teacher (None: w itself), and whether there is anything to distil yet."""

    weights: State = carries(Carries.WEIGHTS)
    teacher: State | None
    distil: bool


@methods.register("fedgkd")
@dataclass(frozen=True)
class FedGKD(Averaging):
    """The mean of the last global models teaches every client on its own data.

    CE + γ/2 KL(teacher ‖ student) on local data, from the second round; γ = 0 is FedAvg.
    """

    paper = "Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation, 2024"
    made_for = ("labels differ much from client to client",)
    private_learners = 1
    server_sums = "samples"
    one_download = True
    late_replies = True
    gamma: float = setting(0.2, ge=0, doc="weight of the distillation (γ)")
    buffer: int = setting(5, ge=1, doc="how many global models teach")

    def init_server(self, env: Env) -> Recent:
        """w⁰, which teaches nothing."""
        weights = env.initial()
        return Recent(weights, self.gather.init(env, weights), ())

    def download(self, env: Env, server: Global) -> Lesson:
        """w, and the mean of the buffer where that is another model than w."""
        assert isinstance(server, Recent)
        teacher = mean(server.buffer) if len(server.buffer) > 1 and self.gamma else None
        return Lesson(server.weights, teacher, bool(server.buffer))

    def client(self, env: Env, state: Any, down: Lesson, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w, with the teacher's predictions on the same batches."""
        learner = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.teacher or down.weights)) if self.gamma and down.distil else None
        for x, y in self.batches(env, data, learner.module):
            logits = learner(x)
            loss = cross_entropy(logits, y)
            if teacher is not None:
                with torch.no_grad():
                    teacher_logits = teacher(x)
                loss = loss + self.gamma / 2 * kl(teacher_logits, logits)
            learner.step(loss)
        return self.gather.outgoing(env, state, learner.weights)

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Recent:
        """w ← Σ n_k w_k / Σ n_k, which joins the buffer as its oldest model leaves."""
        assert isinstance(server, Recent)
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Recent(server.weights, memory, server.buffer)
        weights = average(caught_up(kept, server.weights))
        return Recent(weights, memory, (*server.buffer, weights)[-self.buffer :])
