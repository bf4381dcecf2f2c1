"""FedGKD: the mean of the last global models teaches every client on its own data.

Yao, Pan, Dai, Wan, Ding, Yu, Jin, Xu, Sun: FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge
Distillation. IEEE Transactions on Computers 2024.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import Gather, Remember, Update, average, mean
from fedstill.parts.learner import LocalTraining, frozen
from fedstill.parts.losses import cross_entropy, kl


@record
class Recent:
    """The server's state: w, the buffer of the last global models (w last, w⁰ never), what the gather remembers."""

    weights: State
    buffer: tuple[State, ...]
    memory: Any


@record
class Lesson:
    """What goes down: w, the teacher (None: w itself), and whether there is anything to distil yet."""

    weights: State = carries(Carries.WEIGHTS)
    teacher: State | None
    distil: bool


@methods.register("fedgkd")
@dataclass(frozen=True)
class FedGKD(LocalTraining, Method[Recent, Any, Lesson, Update]):
    """CE + γ/2 KL(teacher ‖ student) on local data, from the second round; γ = 0 is FedAvg."""

    paper = "Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation, 2024"
    private_learners = 1
    server_sums = "samples"
    one_download = True
    gamma: float = setting(0.2, ge=0, doc="weight of the distillation (γ)")
    buffer: int = setting(5, ge=1, doc="how many global models teach")
    gather: Gather = setting(Remember(), doc="what the server does with the replies (remember: also report `overall`)")

    def init_server(self, env: Env) -> Recent:
        """w⁰, which teaches nothing."""
        weights = env.initial()
        return Recent(weights, (), self.gather.init(env, weights))

    def init_client(self, env: Env) -> Any:
        """A client keeps nothing, unless its gather asks it to."""
        return None

    def download(self, env: Env, server: Recent) -> Lesson:
        """w, and the mean of the buffer where that is another model than w."""
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
                    wisdom = teacher(x)
                loss = loss + self.gamma / 2 * kl(wisdom, logits)
            learner.step(loss)
        return self.gather.outgoing(env, state, learner.weights)

    def server(self, env: Env, server: Recent, replies: Sequence[Reply[Update]]) -> Recent:
        """w ← Σ n_k w_k / Σ n_k, which joins the buffer as its oldest model leaves."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Recent(server.weights, server.buffer, memory)
        weights = average(kept)
        return Recent(weights, (*server.buffer, weights)[-self.buffer :], memory)

    def template(self, env: Env) -> Update:
        """Weights of the global model's form."""
        return self.gather.outgoing(env, None, env.form())[1]  # type: ignore[no-any-return]

    def uploads(self) -> type:
        """With T1's slots on the clients, also how the slot changed."""
        return self.gather.sends(super().uploads())

    def models(self, env: Env, server: Recent) -> Mapping[str, State]:
        """`active` and, with `Remember`, `overall`."""
        return {"active": server.weights, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: Recent) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)
