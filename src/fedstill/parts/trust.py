"""Trusted knowledge from logits (FedTKD): who is to be believed, how their logits are fused, how much they weigh.

Everything here works on a stack of logits, clients × public samples × classes, in a few tensor operations.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot, softmax

from fedstill.core.method import Env, Reply
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.parts.gather import Gather, gathers
from fedstill.parts.learner import Learner, Memory, minibatches, predict
from fedstill.parts.losses import cross_entropy


def client_features(logits: Tensor, server: Tensor, labels: Tensor) -> Tensor:
    """(4)–(6) Per client and class, the cosine between its logits on that class's samples and the server's.

    logits: clients × samples × classes; the result is clients × (classes that occur). Zero vectors give 0.
    """
    member = one_hot(labels).to(logits.dtype)
    member = member[:, member.any(0)]  # a class absent from the public set is skipped
    dot = torch.einsum("knc,nc,nm->km", logits, server, member)
    mine = torch.einsum("knc,nm->km", logits.square(), member).clamp_min(0).sqrt()
    theirs = torch.einsum("nc,nm->m", server.square(), member).clamp_min(0).sqrt()
    norm = mine * theirs
    return torch.where(norm > 0, dot / norm.where(norm > 0, torch.ones_like(norm)), torch.zeros_like(dot))


def trusted_clients(features: Tensor, accuracy: Tensor, epsilon: float, seed: int) -> tuple[list[int], list[int]]:
    """(7), (8) Cluster the features in two, take the more accurate cluster, drop who is below its mean by over ε.

    Returns the trusted rows and each row's cluster. One client, or all alike: everyone is trusted; never nobody.
    """
    rows = list(range(len(features)))
    if len(rows) < 2 or bool(torch.allclose(features, features[:1].expand_as(features), atol=1e-6)):
        return rows, [0] * len(rows)
    clusters = KMeans(2, n_init=10, random_state=seed % 2**32).fit_predict(features.double().numpy())
    sides = [[row for row in rows if clusters[row] == side] for side in (0, 1)]
    best = max(sides, key=lambda side: (float(accuracy[side].mean()), len(side)))
    bar = float(accuracy[best].mean()) - epsilon
    return [row for row in best if float(accuracy[row]) >= bar], [int(c) for c in clusters]


def fusion_weights(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """(10)–(12) Clients × classes: (1 − softmax over clients of the mean cross-entropy on the class) / (K − 1)."""
    count = len(logits)
    if count == 1:
        return torch.ones(1, logits.shape[-1], dtype=logits.dtype)
    member = one_hot(labels, logits.shape[-1]).to(logits.dtype)
    loss = -log_softmax(logits / temperature, -1).gather(-1, labels.expand(count, -1)[..., None])[..., 0]
    by_class = loss @ member / member.sum(0).clamp_min(1)
    return (1 - softmax(by_class, 0)) / (count - 1)


def fuse(logits: Tensor, labels: Tensor, temperature: float, server: Tensor | None = None) -> Tensor:
    """(9)–(14) The global logits: the server's where it is right, else the weighted logits of clients that are."""
    weight = fusion_weights(logits, labels, temperature)[:, labels]
    right = (logits.argmax(-1) == labels).to(logits.dtype)
    masked = weight * right
    masked = torch.where(masked.sum(0) > 0, masked, right)  # the right ones all weigh nothing: equal among them
    masked = torch.where(right.sum(0) > 0, masked, weight)  # nobody is right: the class weights as they are
    fused = torch.einsum("kn,knc->nc", masked / masked.sum(0), logits)
    if server is None:
        return fused
    return torch.where((server.argmax(-1) == labels)[:, None], server, fused)


def class_weights(logits: Tensor, labels: Tensor, beta: float, temperature: float) -> Tensor:
    """(17)–(19) How much of the loss is the teacher's, by class: (1 − β) times its mean margin, never below 0."""
    classes = logits.shape[-1]
    member = one_hot(labels, classes).to(logits.dtype)
    own = (softmax(logits / temperature, -1) * member).sum(-1)
    margin = own - (1 - own) / (classes - 1)
    confidence = margin @ member / member.sum(0).clamp_min(1)
    return ((1 - beta) * confidence).clamp_min(0)


@record
class Trust:
    """`Identify`'s state: the server's own model and its logits, and what it found in the last round."""

    weights: State
    memory: Memory
    logits: Tensor
    clients: tuple[int, ...]
    trusted: tuple[int, ...]
    clusters: tuple[int, ...]
    features: Tensor
    accuracy: tuple[float, ...]
    seconds: Mapping[str, float]


@gathers.register("identify")
@dataclass(frozen=True)
class Identify(Gather):
    """FedTKD's client identification (algorithm 1): only replies of trusted clients pass. For any logit method."""

    epsilon: float = setting(0.1, ge=0, doc="how far below the trusted mean accuracy a trusted client may be (ε)")
    server_epochs: int = setting(2, ge=1, doc="epochs of the server's model on the public set, each round")
    server_lr: float = setting(1e-3, gt=0, doc="Adam's rate for the server's model")
    server_batch: int = setting(64, ge=1, doc="batch size for the server's model")

    def init(self, env: Env, weights: State | None) -> Trust:
        """A server model that has seen nothing."""
        nothing = torch.zeros(len(env.public), env.classes)
        return Trust(env.initial(), {}, nothing, (), (), (), torch.zeros(0, 0), (), {})

    def gather(self, env: Env, state: Trust, replies: Sequence[Reply[Any]]) -> tuple[Trust, list[Reply[Any]]]:
        """Train the server's model, compare every client's logits with its, keep the trusted."""
        began = time.perf_counter()
        weights, memory, logits = self._train(env, state)
        trained = time.perf_counter()
        labels = env.public.y
        uploads = torch.stack([r.upload.logits for r in replies])
        accuracy = (uploads.argmax(-1) == labels).float().mean(-1)
        features = client_features(uploads, logits, labels)
        rows, clusters = trusted_clients(features, accuracy, self.epsilon, env.at(env.round).key(f"k-means {env.round}"))
        spent = {"train_server": trained - began, "identify": time.perf_counter() - trained}
        found = Trust(
            weights,
            memory,
            logits,
            tuple(r.client for r in replies),
            tuple(replies[row].client for row in rows),
            tuple(clusters),
            features,
            tuple(accuracy.tolist()),
            spent,
        )
        return found, [replies[row] for row in rows]

    def _train(self, env: Env, state: Trust) -> tuple[State, Memory, Tensor]:
        module = env.module(state.weights)
        learner = Learner(module.train(), torch.optim.Adam(module.parameters(), self.server_lr)).recall(state.memory)
        images, labels = env.public.images().to(env.device), env.public.y.to(env.device)
        for x, y in minibatches(env, "server", images, labels, size=self.server_batch, epochs=self.server_epochs):
            learner.step(cross_entropy(learner(x), y))
        return learner.weights, learner.memory, predict(module, images).cpu()

    def facts(self, env: Env, state: Trust) -> Mapping[str, Any]:
        """Who was trusted, and why."""
        return {
            "trusted": list(state.trusted),
            "answered": list(state.clients),
            "clusters": list(state.clusters),
            "features": state.features.tolist(),
            "client_logits": list(state.accuracy),
            "module_seconds": dict(state.seconds),
        }
