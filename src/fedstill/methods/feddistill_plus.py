"""FedDistill+: clients share the mean logits of each class, with or without their weights.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data. NeurIPS workshop 2018 (mean logits per class); with weights as in
Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.distil import sent, server_slots
from fedstill.parts.gather import Everyone, Gather, Remember, average
from fedstill.parts.learner import LocalTraining, Memory
from fedstill.parts.losses import cross_entropy, kl


@record
class MeanLogits:
    """What leaves a client: its mean logits of every class (zeros where it has none), and which classes it has."""

    logits: Tensor = carries(Carries.CLASS_LOGITS)
    seen: Tensor = carries(Carries.PRESENCE)


@record
class MeanLogitsAndWeights(MeanLogits):
    """The same with its weights, where they are shared."""

    weights: State = carries(Carries.WEIGHTS)


@record
class Shared:
    """The server's state: global mean logits per class, the classes they are known of, w (None: not shared), memory."""

    logits: Tensor
    known: Tensor
    weights: State | None
    memory: Any


@record
class Digest:
    """What goes down: the global mean logits, and the classes they are known of."""

    logits: Tensor
    known: Tensor


@record
class DigestAndWeights(Digest):
    """The same with w, where weights are shared."""

    weights: State


@record
class Own:
    """What stays on a client: its last model, and its optimiser's state where nobody else touches that model."""

    weights: State
    memory: Memory


@methods.register("feddistill-plus")
@dataclass(frozen=True)
class FedDistillPlus(LocalTraining, Method[Shared, Own, Digest, MeanLogits]):
    """CE plus γ KL to the softmax of the global mean logits of the sample's class."""

    paper = "Jeong et al., Federated Distillation and Augmentation under Non-IID Private Data, 2018"
    one_architecture = False  # of each instance: whether it shares weights
    share_weights: bool = setting(True, doc="also average weights; false: class logits only, networks may differ")
    gamma: float = setting(1.0, ge=0, doc="weight of the distillation")
    gather: Gather = setting(
        Remember(), doc="what the server does with the replies (everyone, where no weights are shared)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "one_architecture", self.share_weights)
        server_slots(self.gather)
        if not self.share_weights and isinstance(self.gather, Remember):  # no weights to remember
            object.__setattr__(self, "gather", Everyone())

    def init_server(self, env: Env) -> Shared:
        """Nothing is known of any class."""
        weights = env.initial() if self.share_weights else None
        unknown = torch.zeros(env.classes, env.classes), torch.zeros(env.classes).bool()
        return Shared(*unknown, weights, self.gather.init(env, weights))

    def init_client(self, env: Env) -> Own:
        """A model of the client's own architecture."""
        return Own(env.initial(None if self.share_weights else env.client), {})

    def download(self, env: Env, server: Shared) -> Digest:
        """Class logits, and w."""
        if server.weights is None:
            return Digest(server.logits, server.known)
        return DigestAndWeights(server.logits, server.known, server.weights)

    def client(self, env: Env, state: Own, down: Digest, data: Samples) -> tuple[Own, MeanLogits]:
        """E epochs; the logits of each class are averaged as the samples pass."""
        if isinstance(down, DigestAndWeights):
            learner = self.learner(env, env.module(down.weights))
        else:
            learner = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        logits, known = down.logits.to(env.device), down.known.to(env.device)
        total = torch.zeros(env.classes, env.classes, device=env.device)
        count = torch.zeros(env.classes, device=env.device)
        for x, y in self.batches(env, data, learner.module):
            out = learner(x)
            learner.step(self.loss(out, y, logits, known))
            total.index_add_(0, y, out.detach())
            count.index_add_(0, y, torch.ones_like(y, dtype=count.dtype))
        weights, memory = learner.weights, learner.memory
        means, seen = (total / count.clamp_min(1).unsqueeze(1)).cpu(), (count > 0).cpu()
        if self.share_weights:
            return Own(weights, {}), MeanLogitsAndWeights(means, seen, weights)
        return Own(weights, memory), MeanLogits(means, seen)

    def loss(self, out: Tensor, y: Tensor, logits: Tensor, known: Tensor) -> Tensor:
        """CE + γ KL(p̄_y ‖ p), the KL over samples whose class is known; a batch's unknown samples count as 0."""
        loss, taught = cross_entropy(out, y), known[y]
        if self.gamma and taught.any():
            loss = loss + self.gamma * taught.float().mean() * kl(logits[y[taught]], out[taught])
        return loss

    def server(self, env: Env, server: Shared, replies: Sequence[Reply[MeanLogits]]) -> Shared:
        """Per class, the mean over the clients that have it; a class that nobody had keeps what was known of it."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        uploads = sent(kept)
        if not uploads:
            return Shared(server.logits, server.known, server.weights, memory)
        seen = torch.stack([u.seen for u in uploads]).double()
        total = torch.einsum("kc,kcd->cd", seen, torch.stack([u.logits for u in uploads]).double())
        holders = seen.sum(0)
        means = (total / holders.clamp_min(1).unsqueeze(1)).float()
        logits = torch.where(holders.unsqueeze(1) > 0, means, server.logits)
        return Shared(logits, server.known | (holders > 0), average(kept) if self.share_weights else None, memory)

    def template(self, env: Env) -> MeanLogits:
        """Logits and presence of every class; weights where they are shared."""
        blank = torch.zeros(env.classes, env.classes), torch.zeros(env.classes).bool()
        return MeanLogitsAndWeights(*blank, env.form()) if self.share_weights else MeanLogits(*blank)

    @classmethod
    def upload_type(cls) -> type:
        """With weights, unless the settings say otherwise."""
        return MeanLogitsAndWeights

    def uploads(self) -> type:
        """With weights, or without."""
        return MeanLogitsAndWeights if self.share_weights else MeanLogits

    def downloads(self) -> type:
        """With weights, or without."""
        return DigestAndWeights if self.share_weights else Digest

    def models(self, env: Env, server: Shared) -> Mapping[str, State]:
        """`active` and what the gather adds, where weights are shared; else none."""
        return {} if server.weights is None else {"active": server.weights, **self.gather.models(env, server.memory)}

    def own(self, env: Env, state: Own) -> State:
        """The client's model after its last turn."""
        return state.weights

    def facts(self, env: Env, server: Shared) -> Mapping[str, Any]:
        """How many classes are known, and what the gather reports."""
        return {"known_classes": int(server.known.sum()), **self.gather.facts(env, server.memory)}
