"""Chen, Wang, Vikalo: The Best of Both Worlds: Accurate Global and Personalized Models through Federated Learning with
Data-Free Hyper-Knowledge Distillation. ICLR 2023.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softmax

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast, Global
from fedstill.parts.class_knowledge import by_class, class_means, common_width
from fedstill.parts.gather import Update, average
from fedstill.parts.labels import miscounted
from fedstill.parts.learner import features_of
from fedstill.parts.losses import cross_entropy


@record
class HyperKnowledge(Update):
    """What leaves a client: weights; of each class the mean features, the mean soft predictions, the samples."""

    features: Tensor = carries(Carries.PROTOTYPES)
    predictions: Tensor = carries(Carries.CLASS_PREDICTIONS)
    counts: Tensor = carries(Carries.LABEL_COUNTS)


@record
class Knowing(Global):
    """The server's state: w, what the gather remembers, the global hyper-knowledge, and the classes it is of."""

    features: Tensor
    predictions: Tensor
    known: Tensor


@record
class Lecture(Broadcast):
    """What goes down: w and the global hyper-knowledge."""

    features: Tensor
    predictions: Tensor
    known: Tensor


@record
class Kept:
    """What stays on a client: its own model after its last turn."""

    weights: State


@methods.register("fedhkd")
@dataclass(frozen=True)
class FedHKD(Averaging):
    """Beside their weights clients share, for each class, mean features and mean soft predictions.

    CE + λ ‖σ(head(H_c)/T) − Q_c‖ + γ ‖features(x) − H_y‖; λ = γ = 0 is FedAvg.
    """

    paper = "Chen, Wang, Vikalo, The Best of Both Worlds: Data-Free Hyper-Knowledge Distillation, ICLR 2023"
    needs_features = True
    one_download = True
    lam: float = setting(0.05, ge=0, doc="weight of the head's agreement with the global soft predictions (λ)")
    gamma: float = setting(0.05, ge=0, doc="weight of the features' distance from the global ones (γ)")
    temperature: float = setting(0.5, gt=0, doc="temperature of the soft predictions (T)")

    def init_server(self, env: Env) -> Knowing:
        """w⁰; nothing is known of any class."""
        first, width = super().init_server(env), common_width(env)
        features, predictions = torch.zeros(env.classes, width), torch.zeros(env.classes, env.classes)
        return Knowing(first.weights, first.memory, features, predictions, torch.zeros(env.classes).bool())

    def download(self, env: Env, server: Global) -> Lecture:
        """w and the global hyper-knowledge."""
        assert isinstance(server, Knowing)
        return Lecture(server.weights, server.features, server.predictions, server.known)

    def client(self, env: Env, state: Any, down: Lecture, data: Samples) -> tuple[Kept, HyperKnowledge]:
        """E epochs of SGD from w; then what the trained model makes of each class."""
        learner = self.learner(env, env.module(down.weights))
        lecture = [t.to(env.device) for t in (down.features, down.predictions, down.known)]
        for x, y in self.batches(env, data, learner.module):
            learner.step(self.loss(learner.module, x, y, *lecture))
        weights = learner.weights
        return Kept(weights), HyperKnowledge(weights, *self.described(env, learner.module, data))

    def loss(self, module: Any, x: Tensor, y: Tensor, features: Tensor, predictions: Tensor, known: Tensor) -> Tensor:
        """(8); means are over known classes and over the batch, where samples of unknown classes count as 0."""
        own = module.features(x)
        loss = cross_entropy(module.head(own), y)
        if self.lam and known.any():
            predicted = softmax(module.head(features[known]) / self.temperature, -1)
            loss = loss + self.lam * length(predicted - predictions[known]).mean()
        if self.gamma and known.any():
            loss = loss + self.gamma * (length(own - features[y]) * known[y]).mean()
        return loss

    def described(self, env: Env, module: Any, data: Samples) -> tuple[Tensor, Tensor, Tensor]:
        """Mean features, mean soft predictions and number of samples of each class, in evaluation mode."""
        features = features_of(module, data.inputs().to(env.device))
        with torch.no_grad():
            soft = softmax(module.head(features) / self.temperature, -1)
        y = data.y.to(env.device)
        means, counts = class_means(features, y, env.classes)
        return means.cpu(), class_means(soft, y, env.classes)[0].cpu(), counts.cpu()

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Any]]) -> Global:
        """FedAvg's average; of each class, features and soft predictions weighted by the clients' samples of it."""
        assert isinstance(server, Knowing)
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Knowing(server.weights, memory, server.features, server.predictions, server.known)
        counts = [r.upload.counts for r in kept]
        features, known = by_class(server.features, server.known, [r.upload.features for r in kept], counts)
        predictions, _ = by_class(server.predictions, server.known, [r.upload.predictions for r in kept], counts)
        return Knowing(average(kept), memory, features, predictions, known)

    def template(self, env: Env) -> HyperKnowledge:
        """Weights of the global model's form; vectors and a count for each class."""
        features, predictions = torch.zeros(env.classes, common_width(env)), torch.zeros(env.classes, env.classes)
        return HyperKnowledge(env.form(), features, predictions, torch.zeros(env.classes, dtype=torch.int64))

    def objection(self, env: Env, upload: Update) -> str | None:
        """Counts are not negative."""
        return miscounted(upload.counts) if isinstance(upload, HyperKnowledge) else None

    def own(self, env: Env, state: Kept) -> State:
        """The client's model after its last turn."""
        return state.weights

    def facts(self, env: Env, server: Global) -> Mapping[str, Any]:
        """How many classes are known, and what the gather reports."""
        assert isinstance(server, Knowing)
        return {"known_classes": int(server.known.sum()), **super().facts(env, server)}


def length(vectors: Tensor) -> Tensor:
    """Euclidean lengths, with a gradient of 0 where they are 0."""
    return vectors.square().sum(-1).clamp_min(1e-12).sqrt()
