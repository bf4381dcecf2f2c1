"""Zhang, Chen, Li, Lyu, Wu, Ding, Shen, Wu: DENSE: Data-Free One-Shot Federated Learning. NeurIPS 2022."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.methods.local import Alone
from fedstill.parts.architectures import kinds_of, one_form, same_form
from fedstill.parts.averaging import Broadcast
from fedstill.parts.conditional_generator import Gallery, hang
from fedstill.parts.distil import uploads_of
from fedstill.parts.gather import Everyone, Gather, Update
from fedstill.parts.learner import LocalTraining
from fedstill.parts.losses import cross_entropy, kl_each
from fedstill.parts.one_shot import Ensemble, OneShot


@record
class Student:
    """The server's state: the student, and of the last round the members' shares, the agreement, and samples."""

    weights: State
    memory: Any
    shares: Mapping[int, float]
    agreement: float
    gallery: Gallery


@dataclass(frozen=True)
class OneShotFederation(OneShot, LocalTraining, Method[Student, Alone, Broadcast, Update]):
    """What DENSE and Co-Boosting share: clients train and send their models, the server fuses them without data."""

    one_architecture = False
    one_round = True
    private_learners = 1
    one_download = True
    epochs: int = setting(50, ge=1, doc="local epochs in a round (E)")
    gather: Gather = setting(Everyone(), doc="what the server does with the replies first")

    def init_server(self, env: Env) -> Student:
        """w⁰."""
        one_form(self.gather, kinds_of(env))
        weights = env.initial()
        return Student(weights, self.gather.init(env, weights), {}, 0.0, {})

    def init_client(self, env: Env) -> Alone:
        """A model of the client's own architecture."""
        return Alone(env.initial(env.client), {})

    def download(self, env: Env, server: Student) -> Broadcast:
        """The student."""
        return Broadcast(server.weights)

    def client(self, env: Env, state: Alone, down: Broadcast, data: Samples) -> tuple[Alone, Update]:
        """Local epochs, from the student where the network is of its form, else from the client's own last model."""
        begin = down.weights if same_form(down.weights, state.weights) else state.weights
        learner = self.learner(env, env.module(begin, env.client))
        self.train(env, learner, data)
        weights = learner.weights
        return Alone(weights, {}), Update(weights)

    def server(self, env: Env, server: Student, replies: Sequence[Reply[Update]]) -> Student:
        """Make samples, distil the ensemble into a fresh model."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Student(server.weights, memory, server.shares, server.agreement, server.gallery)
        teachers = [env.module(u.weights, r.client) for r, u in zip(kept, uploads_of(kept), strict=True)]
        fused = self.fuse(env, teachers, env.module(env.initial()))
        shares = dict(zip([r.client for r in kept], fused.shares.tolist(), strict=True))
        gallery = hang(server.gallery, env.round + 1, env.kind.kept(fused.made[: env.classes].cpu()))
        return Student(fused.weights, memory, shares, fused.agreement, gallery)

    def template(self, env: Env) -> Update:
        """Weights of the client's architecture."""
        return Update(env.form(env.client))

    def models(self, env: Env, server: Student) -> Mapping[str, State]:
        """`global`: the student; and what the gather adds."""
        return {"global": server.weights, **self.gather.models(env, server.memory)}

    def own(self, env: Env, state: Alone) -> State:
        """The client's model after its last turn."""
        return state.weights

    def facts(self, env: Env, server: Student) -> Mapping[str, Any]:
        """Members' shares in the ensemble, and on how many samples made the student agrees with it."""
        shares = {str(client): share for client, share in server.shares.items()}
        return {**self.gather.facts(env, server.memory), "shares": shares, "agreement": server.agreement}


@methods.register("dense")
@dataclass(frozen=True)
class DENSE(OneShotFederation):
    """One round; the server makes samples from the clients' models alone and distils their ensemble into one.

    L_gen = CE + λ₁ L_BN + λ₂ L_div, L_div = −KL(ensemble ‖ student) where the two predict different classes.
    """

    paper = "Zhang et al., DENSE: Data-Free One-Shot Federated Learning, NeurIPS 2022"

    def label_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """L_CE (3)."""
        return cross_entropy(logits, y)

    def challenge(self, ensemble: Tensor, student: Tensor) -> Tensor:
        """−L_div (6): the divergence of samples on the far side of the student's boundary."""
        apart = ensemble.argmax(-1) != student.argmax(-1)
        return (kl_each(ensemble, student) * apart).mean()

    def hardened(self, inputs: Tensor, ensemble: Ensemble, stream: torch.Generator) -> Tensor:
        """As they were made."""
        return inputs

    def reweighted(self, ensemble: Ensemble, batches: Iterator[tuple[Tensor, Tensor]], generation: int) -> Tensor:
        """All members count the same (1)."""
        return ensemble.shares
