"""Chan, Ngai: FedHe: Heterogeneous Models and Communication-Efficient Federated Learning. MSN 2021."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.class_knowledge import by_class
from fedstill.parts.learner import LocalTraining, Optimizer
from fedstill.parts.losses import cross_entropy
from fedstill.parts.public_logits import Private


@record
class MeanLogits:
    """What leaves a client: its mean logits of each class (zeros where it has none), and which classes it has."""

    logits: Tensor = carries(Carries.CLASS_LOGITS)
    seen: Tensor = carries(Carries.PRESENCE)


@record
class ClassWisdom:
    """The server's state, and what goes down: global mean logits of each class, and the classes they are known of."""

    logits: Tensor
    known: Tensor


def fused(before: ClassWisdom, uploads: Sequence[MeanLogits]) -> ClassWisdom:
    """Per class, the mean over the clients that have it; a class that nobody has keeps what was known of it."""
    logits, seen = [u.logits for u in uploads], [u.seen for u in uploads]
    return ClassWisdom(*by_class(before.logits, before.known, logits, seen))


@methods.register("fedhe")
@dataclass(frozen=True)
class FedHe(LocalTraining, Method[ClassWisdom, Private, ClassWisdom, MeanLogits]):
    """Clients with different networks share the mean logits of each class; no public data, no weights.

    CE + α MSE to the global mean logits of the sample's class.
    """

    paper = "Chan and Ngai, FedHe: Heterogeneous Models and Communication-Efficient Federated Learning, MSN 2021"
    made_for = ("clients may have different networks",)
    private_learners = 1
    one_architecture = False
    one_download = True
    lr: float = setting(1e-3, gt=0, doc="learning rate of the clients")
    epochs: int = setting(1, ge=1, doc="local epochs in a round (E)")
    optimizer: Optimizer = setting("adam", doc="sgd or adam")
    alpha: float = setting(0.5, ge=0, doc="weight of the distance to the class's global logits (α)")

    def init_server(self, env: Env) -> ClassWisdom:
        """Nothing is known of any class."""
        return ClassWisdom(torch.zeros(env.classes, env.classes), torch.zeros(env.classes, dtype=torch.bool))

    def init_client(self, env: Env) -> Private:
        """A model of the client's own architecture."""
        return Private(env.initial(env.client), {}, {}, 0)

    def download(self, env: Env, server: ClassWisdom) -> ClassWisdom:
        """The class logits."""
        return server

    def client(self, env: Env, state: Private, down: ClassWisdom, data: Samples) -> tuple[Private, MeanLogits]:
        """Local epochs; the logits of passing samples are summed up by class on the way, as in the authors' code."""
        learner = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        class_logits, known = down.logits.to(env.device), down.known.to(env.device)
        total = torch.zeros(env.classes, env.classes, device=env.device)
        count = torch.zeros(env.classes, device=env.device)
        for x, y in self.batches(env, data, learner.module):
            logits = learner(x)
            learner.step(self.loss(logits, y, class_logits, known))
            total.index_add_(0, y, logits.detach())
            count.index_add_(0, y, torch.ones_like(y, dtype=count.dtype))
        upload = MeanLogits((total / count.clamp_min(1)[:, None]).cpu(), (count > 0).cpu())
        return Private(learner.weights, {}, learner.memory, state.turns + 1), upload

    def loss(self, logits: Tensor, y: Tensor, class_logits: Tensor, known: Tensor) -> Tensor:
        """CE + α MSE; a sample whose class is not known yet adds nothing to the second term."""
        apart = (logits - class_logits[y]).square().mean(-1) * known[y]
        return cross_entropy(logits, y) + self.alpha * apart.mean()

    def server(self, env: Env, server: ClassWisdom, replies: Sequence[Reply[MeanLogits]]) -> ClassWisdom:
        """Per class, the mean over the clients that have it; a class that nobody has keeps what was known of it."""
        return fused(server, [r.upload for r in replies])

    def template(self, env: Env) -> MeanLogits:
        """Logits and presence of every class."""
        return MeanLogits(torch.zeros(env.classes, env.classes), torch.zeros(env.classes, dtype=torch.bool))

    def own(self, env: Env, state: Private) -> State:
        """The client's private model."""
        return state.weights

    def facts(self, env: Env, server: ClassWisdom) -> Mapping[str, Any]:
        """The share of known classes whose global mean logits are largest at that class."""
        right = server.logits.argmax(-1) == torch.arange(env.classes)
        known = int(server.known.sum())
        return {"known_classes": known, "class_logits": float((right & server.known).sum()) / max(known, 1)}
