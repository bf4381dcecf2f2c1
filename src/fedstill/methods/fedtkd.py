"""FedTKD: clients with different networks exchange logits only; trusted knowledge is fused and distilled.

Chen, Zhang, Dong, Zhao, Zeng, Qiao, Zhu, Tan: FedTKD: A Trustworthy Heterogeneous Federated Learning Based on
Adaptive Knowledge Distillation. Entropy 2024.
Equation numbers are the paper's; the method page lists every choice.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, softmax

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import Gather
from fedstill.parts.learner import LocalTraining, Memory, Optimizer, minibatches, predict
from fedstill.parts.trust import Identify, class_weights, fuse


@record
class PublicLogits:
    """What leaves a client: its logits on the public samples, indexed (25)."""

    logits: Tensor = carries(Carries.LOGITS)
    index: Tensor = carries(Carries.LOGITS)


@record
class Private:
    """What stays on a client: its own model, of its own architecture, and its optimiser's state."""

    weights: State
    memory: Memory


@record
class Wisdom:
    """What goes down: global logits on the public samples and the class weights; None in the first round."""

    logits: Tensor | None
    weights: Tensor | None


@record
class Fused:
    """The server's state: what it sends next, what the gather keeps, and the seconds each part took."""

    wisdom: Wisdom
    memory: Any
    seconds: Mapping[str, float]


@methods.register("fedtkd")
@dataclass(frozen=True)
class FedTKD(LocalTraining, Method[Fused, Private, Wisdom, PublicLogits]):
    """Algorithm 4: identify, fuse, weigh on the server; distil on public data, train on private data on the client."""

    paper = "Chen et al., FedTKD: A Trustworthy Heterogeneous Federated Learning Based on Adaptive Knowledge Distillation"
    needs_public = True
    one_architecture = False
    lr: float = setting(1e-3, gt=0, doc="learning rate of the clients")
    epochs: int = setting(1, ge=1, doc="epochs on the private set in a round")
    optimizer: Optimizer = setting("adam", doc="sgd or adam")
    temperature: float = setting(3.0, gt=0, doc="T of the teacher's softmax (10, 20)")
    student_T: float = setting(1.0, gt=0, doc="temperature of the student in the distillation loss")
    beta: float = setting(0.8, ge=0, le=1, doc="keeps the teacher's weight below 1 − β (19)")
    gather: Gather = setting(Identify(), doc="who is believed (algorithm 1)")

    def init_server(self, env: Env) -> Fused:
        """No global logits yet."""
        return Fused(Wisdom(None, None), self.gather.init(env, None), {})

    def init_client(self, env: Env) -> Private:
        """A model of the client's own architecture."""
        return Private(env.initial(env.client), {})

    def download(self, env: Env, server: Fused) -> Wisdom:
        """Global logits and class weights."""
        return server.wisdom

    def client(self, env: Env, state: Private, down: Wisdom, data: Samples) -> tuple[Private, PublicLogits]:
        """Algorithm 3: an epoch on the public set, then on the private one; then the public logits."""
        learner = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        images, labels = env.public.images().to(env.device), env.public.y.to(env.device)
        every = torch.arange(len(labels))
        for x, y, index in minibatches(env, "public", images, labels, every, size=self.batch):
            learner.step(self.public_loss(learner(x), y, index, down))
        for x, y in self.batches(env, data, learner.module):
            learner.step(cross_entropy(learner(x), y))  # (24)
        upload = PublicLogits(predict(learner.module, images).cpu(), every)
        return Private(learner.weights, learner.memory), upload

    def public_loss(self, logits: Tensor, labels: Tensor, index: Tensor, down: Wisdom) -> Tensor:
        """(23) (1 − w_y) CE + w_y KD, sample by sample; CE alone while there are no global logits."""
        if down.logits is None or down.weights is None:
            return cross_entropy(logits, labels)
        teacher = softmax(down.logits[index].to(logits.device) / self.temperature, -1)
        taught = -(teacher * log_softmax(logits / self.student_T, -1)).sum(-1)  # (22)
        weight = down.weights.to(logits.device)[labels]
        return ((1 - weight) * cross_entropy(logits, labels, reduction="none") + weight * taught).mean()

    def server(self, env: Env, server: Fused, replies: Sequence[Reply[PublicLogits]]) -> Fused:
        """Identify (algorithm 1), fuse (algorithm 2), weigh (17)–(19)."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        began = time.perf_counter()
        labels = env.public.y
        logits = torch.stack([r.upload.logits for r in kept if r.upload is not None])
        fused = fuse(logits, labels, self.temperature, getattr(memory, "logits", None))
        ended = time.perf_counter()
        weights = class_weights(fused, labels, self.beta, self.temperature)
        spent = {"fuse": ended - began, "weigh": time.perf_counter() - ended}
        return Fused(Wisdom(fused, weights), memory, spent)

    def template(self, env: Env) -> PublicLogits:
        """One row of logits for every public sample, in order."""
        return PublicLogits(torch.zeros(len(env.public), env.classes), torch.arange(len(env.public)))

    def objection(self, env: Env, upload: PublicLogits) -> str | None:
        """Logits under the wrong index are refused."""
        order = torch.arange(len(env.public))
        return None if torch.equal(upload.index, order) else "the index is not that of the public samples"

    def own(self, env: Env, state: Private) -> State:
        """The client's private model."""
        return state.weights

    def facts(self, env: Env, server: Fused) -> Mapping[str, Any]:
        """Accuracy of the global logits (27), class weights, who was trusted, seconds per module."""
        known = dict(self.gather.facts(env, server.memory))
        if server.wisdom.logits is not None and server.wisdom.weights is not None:
            hits = server.wisdom.logits.argmax(-1) == env.public.y
            known["global_logits"] = float(hits.float().mean())
            known["class_weights"] = server.wisdom.weights.tolist()
        known["module_seconds"] = {**known.get("module_seconds", {}), **server.seconds}
        return known
