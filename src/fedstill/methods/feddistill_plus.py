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

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import Gather, Remember, average
from fedstill.parts.learner import LocalTraining, Memory
from fedstill.parts.losses import cross_entropy, kl


@record
class ClassLogits:
    """What leaves a client: its mean logits of every class (zeros where it has none), which it has, and its weights."""

    logits: Tensor = carries(Carries.CLASS_LOGITS)
    seen: Tensor = carries(Carries.PRESENCE)
    weights: State | None = carries(Carries.WEIGHTS)


@record
class Shared:
    """The server's state: global mean logits per class, the classes they are known of, w (None: not shared), memory."""

    logits: Tensor
    known: Tensor
    weights: State | None
    memory: Any


@record
class Digest:
    """What goes down: the global mean logits and the classes they are known of, and w where weights are shared."""

    logits: Tensor
    known: Tensor
    weights: State | None


@record
class Own:
    """What stays on a client: its last model, and its optimiser's state where nobody else touches that model."""

    weights: State
    memory: Memory


@methods.register("feddistill-plus")
@dataclass(frozen=True)
class FedDistillPlus(LocalTraining, Method[Shared, Own, Digest, ClassLogits]):
    """CE plus γ KL to the softmax of the global mean logits of the sample's class."""

    paper = "Jeong et al., Federated Distillation and Augmentation under Non-IID Private Data, 2018"
    one_architecture = False  # of each instance: whether it shares weights
    share_weights: bool = setting(True, doc="also average weights; false: class logits only, networks may differ")
    gamma: float = setting(1.0, ge=0, doc="weight of the distillation")
    gather: Gather = setting(Remember(), doc="what the server does with replies, where weights are shared")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "one_architecture", self.share_weights)
        if isinstance(self.gather, Remember) and self.gather.slots == "client":
            raise UsageError("gather.slots = 'client': feddistill-plus uploads more than weights; must be 'server'")
        if not self.share_weights and self.gather != Remember() and self.gather.reads is not None:
            raise UsageError(f"gather = {type(self.gather).__name__}: works on weights, and share_weights is false")

    def init_server(self, env: Env) -> Shared:
        """Nothing is known of any class."""
        weights = env.initial() if self.share_weights else None
        memory = self.gather.init(env, weights) if self.share_weights else None
        return Shared(torch.zeros(env.classes, env.classes), torch.zeros(env.classes).bool(), weights, memory)

    def init_client(self, env: Env) -> Own:
        """A model of the client's own architecture."""
        return Own(env.initial(None if self.share_weights else env.client), {})

    def download(self, env: Env, server: Shared) -> Digest:
        """Class logits, and w."""
        return Digest(server.logits, server.known, server.weights)

    def client(self, env: Env, state: Own, down: Digest, data: Samples) -> tuple[Own, ClassLogits]:
        """E epochs; the logits of each class are averaged as the samples pass."""
        if down.weights is not None:
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
        weights, means = learner.weights, total / count.clamp_min(1).unsqueeze(1)
        upload = ClassLogits(means.cpu(), (count > 0).cpu(), weights if self.share_weights else None)
        return Own(weights, {} if self.share_weights else learner.memory), upload

    def loss(self, out: Tensor, y: Tensor, logits: Tensor, known: Tensor) -> Tensor:
        """CE + γ KL(p̄_y ‖ p), the KL over samples whose class is known; a batch's unknown samples count as 0."""
        loss, taught = cross_entropy(out, y), known[y]
        if self.gamma and taught.any():
            loss = loss + self.gamma * taught.float().mean() * kl(logits[y[taught]], out[taught])
        return loss

    def server(self, env: Env, server: Shared, replies: Sequence[Reply[ClassLogits]]) -> Shared:
        """Per class, the mean over the clients that have it; a class that nobody had keeps what was known of it."""
        memory, kept = server.memory, list(replies)
        if self.share_weights:
            memory, kept = self.gather.gather(env, memory, replies)
        uploads = [r.upload for r in kept if r.upload is not None]
        if not uploads:
            return Shared(server.logits, server.known, server.weights, memory)
        seen = torch.stack([u.seen for u in uploads]).double()
        total = torch.einsum("kc,kcd->cd", seen, torch.stack([u.logits for u in uploads]).double())
        holders = seen.sum(0)
        means = (total / holders.clamp_min(1).unsqueeze(1)).float()
        logits = torch.where(holders.unsqueeze(1) > 0, means, server.logits)
        return Shared(logits, server.known | (holders > 0), average(kept) if self.share_weights else None, memory)

    def template(self, env: Env) -> ClassLogits:
        """Logits and presence of every class; weights where they are shared."""
        blank = torch.zeros(env.classes, env.classes)
        return ClassLogits(blank, torch.zeros(env.classes).bool(), env.form() if self.share_weights else None)

    def models(self, env: Env, server: Shared) -> Mapping[str, State]:
        """`active` and what the gather adds, where weights are shared; else none."""
        return {} if server.weights is None else {"active": server.weights, **self.gather.models(env, server.memory)}

    def own(self, env: Env, state: Own) -> State:
        """The client's model after its last turn."""
        return state.weights

    def facts(self, env: Env, server: Shared) -> Mapping[str, Any]:
        """How many classes are known, and what the gather reports."""
        told = self.gather.facts(env, server.memory) if self.share_weights else {}
        return {"known_classes": int(server.known.sum()), **told}
