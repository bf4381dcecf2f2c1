"""Luo, Chen, Hu, Zhang, Liang, Feng: No Fear of Heterogeneity: Classifier Calibration for Federated Learning with
Non-IID Data. NeurIPS 2021.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.models.conditional import feature_width
from fedstill.parts.averaging import Averaging, Broadcast, Global
from fedstill.parts.gather import Update, average
from fedstill.parts.learner import Learner, features_of, minibatches, optimizer_of, weights_of
from fedstill.parts.losses import cross_entropy


@record
class Described(Update):
    """What leaves a client: its weights; of w's features on its data, by class: mean, covariance, how many."""

    means: Tensor = carries(Carries.FEATURES)
    covariances: Tensor = carries(Carries.FEATURES)
    counts: Tensor = carries(Carries.LABEL_COUNTS)


@record
class Calibrated(Global):
    """The server's state: w, what the gather remembers, and the model with the new head."""

    calibrated: State


@methods.register("ccvr")
@dataclass(frozen=True)
class CCVR(Averaging):
    """FedAvg, and a copy of its model whose head is trained anew on features drawn from each class's statistics.

    FedAvg, and beside it, not fed back, w with a head calibrated on virtual features.
    """

    paper = "Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning, NeurIPS 2021"
    needs_features = True
    judged_by = "calibrated"
    private_learners = 1
    virtual: int = setting(100, ge=1, doc="virtual features for each class (M_c)")
    head_epochs: int = setting(10, ge=1, doc="passes over the virtual features")
    head_lr: float = setting(0.01, gt=0, doc="learning rate of the head")

    def init_server(self, env: Env) -> Calibrated:
        """w⁰, not calibrated yet."""
        first = super().init_server(env)
        return Calibrated(first.weights, first.memory, first.weights)

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Described]:
        """What w sees of each class; then E epochs of SGD from w."""
        module = env.module(down.weights)
        statistics = describe(features_of(module, data.inputs().to(env.device)), data.y.to(env.device), env.classes)
        learner = self.learner(env, module)
        self.train(env, learner, data)
        return state, Described(learner.weights, *(t.cpu() for t in statistics))

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Any]]) -> Global:
        """FedAvg's average; and the w that was described, with a new head."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return replace(server, memory=memory)
        statistics = [(r.upload.means, r.upload.covariances, r.upload.counts) for r in kept]
        return Calibrated(average(kept), memory, self.calibrate(env, server.weights, statistics))

    def calibrate(self, env: Env, weights: State, statistics: Sequence[tuple[Tensor, Tensor, Tensor]]) -> State:
        """Draw features of every class that anybody has, and train the head on them; the rest of w stays."""
        means, covariances, counts = pooled(statistics)
        known = counts.nonzero().flatten()
        x = virtual_features(means[known], covariances[known], self.virtual, env.stream("virtual features"))
        y = known.repeat_interleave(self.virtual)
        module = env.module(weights).eval()
        head: Any = module.head
        student = Learner(head, optimizer_of("sgd", head, self.head_lr))
        x, y = x.to(env.device), y.to(env.device)
        for some, labels in minibatches(env, "calibrate", x, y, size=self.batch, epochs=self.head_epochs):
            student.step(cross_entropy(student(some), labels))
        return weights_of(module)

    def template(self, env: Env) -> Described:
        """Weights of the global model's form; a mean, a covariance and a count for each class."""
        width = feature_width(env.module(), env.kind)
        shape = (env.classes, width)
        return Described(env.form(), torch.zeros(shape), torch.zeros(*shape, width), torch.zeros(env.classes).long())

    def objection(self, env: Env, upload: Update) -> str | None:
        """Counts are not negative, and somebody must have something."""
        counts = upload.counts if isinstance(upload, Described) else torch.ones(1)
        return None if bool((counts >= 0).all()) and bool(counts.any()) else "counts: must be ≥ 0, and one > 0"

    def models(self, env: Env, server: Global) -> Mapping[str, State]:
        """FedAvg's, and `calibrated`: the w of this round's download with its new head."""
        new = {"calibrated": server.calibrated} if isinstance(server, Calibrated) else {}
        return {**super().models(env, server), **new}


def describe(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class: mean, covariance (over n − 1; 0 for fewer than two samples), number of samples."""
    width = features.shape[1]
    means, covariances = features.new_zeros(classes, width), features.new_zeros(classes, width, width)
    counts = torch.bincount(labels, minlength=classes)
    for label in counts.nonzero().flatten().tolist():
        own = features[labels == label].double()
        means[label] = own.mean(0)
        if len(own) > 1:
            covariances[label] = own.T.cov()
    return means, covariances, counts


def pooled(statistics: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, covariance and count of each class, as if all clients' samples were in one place."""
    means, covariances, counts = (torch.stack(part).double() for part in zip(*statistics, strict=True))
    whole = counts.sum(0)
    mean = (counts[..., None] * means).sum(0) / whole.clamp(min=1)[:, None]
    within = ((counts - 1).clamp(min=0)[..., None, None] * covariances).sum(0)
    gap = means - mean
    between = torch.einsum("kc,kci,kcj->cij", counts, gap, gap)
    return mean, (within + between) / (whole - 1).clamp(min=1)[:, None, None], whole


def virtual_features(means: Tensor, covariances: Tensor, count: int, stream: torch.Generator) -> Tensor:
    """`count` draws from each class's Gaussian, class after class; a covariance of low rank will do."""
    values, vectors = torch.linalg.eigh(covariances)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    noise = torch.randn(*means.shape[:1], count, means.shape[1], generator=stream, dtype=means.dtype)
    features: Tensor = means.unsqueeze(1) + noise @ root.mT
    return features.flatten(0, 1).float()
