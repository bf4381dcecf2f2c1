"""Trusted knowledge from logits (FedTKD): who is to be believed, how their logits are fused, how much they weigh.

Chen et al., FedTKD: A Trustworthy Heterogeneous Federated Learning Based on Adaptive Knowledge Distillation. Entropy
2024. Equation numbers are the paper's. Everything works on a stack of logits, clients × public samples × classes, in a
few tensor operations; each part can be used by itself.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softmax

import fedstill.parts.identification  # noqa: F401 (says what follows from `trusted`)
from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, State, carried, record
from fedstill.core.value import changes, setting
from fedstill.parts.adam import Adam
from fedstill.parts.gather import Gather, gathers
from fedstill.parts.learner import Learner, Memory, minibatches, predict, refuses_one
from fedstill.parts.losses import cross_entropy


def centred(logits: Tensor) -> Tensor:
    """Logits less their mean over classes: a constant on all of them changes no softmax, but would change a cosine."""
    return logits - logits.mean(-1, keepdim=True)


def client_features(logits: Tensor, server: Tensor, labels: Tensor) -> Tensor:
    """(4)–(6) Per client and class, the cosine between its logits on that class's samples and the server's.

    logits: clients × samples × classes; the result is clients × (classes that occur). Zero vectors give 0.
    """
    member = one_hot(labels).to(logits.dtype)
    member = member[:, member.any(0)]  # a class absent from the public set is skipped
    dot = (logits * server).sum(-1) @ member
    norm = (logits.square().sum(-1) @ member).sqrt() * (server.square().sum(-1) @ member).sqrt()
    return torch.where(norm > 0, dot / norm.where(norm > 0, 1.0), 0.0)


def trusted_clients(
    features: Tensor, accuracy: Tensor, epsilon: float, seed: int, margin: float = 0.0
) -> tuple[list[int], list[int]]:
    """(7), (8) Cluster the features in two, take the more accurate cluster, drop who is below its mean by over ε.

    Accuracies that differ by no more than `margin` decide nothing: then the cluster nearer to the server (the higher
    mean cosine) is taken, and without a margin, on a tie, the larger. Returns the trusted rows and each row's cluster.
    One client, or all alike: everyone is trusted; never nobody.
    """
    rows, right = list(range(len(features))), accuracy.double()
    if len(rows) < 2 or bool(torch.allclose(features, features[:1].expand_as(features), atol=1e-6)):
        return rows, [0] * len(rows)
    from sklearn.cluster import KMeans  # slow to import, and only needed here

    clusters = KMeans(2, n_init=10, random_state=seed % 2**32).fit_predict(features.double().numpy())
    sides = [[row for row in rows if clusters[row] == side] for side in (0, 1)]
    apart = float((right[sides[0]].mean() - right[sides[1]].mean()).abs()) > margin

    def merit(side: list[int]) -> tuple[float, int]:
        near = float(features[side].mean()) if margin else 0.0
        return float(right[side].mean()) if apart else near, len(side)

    best = max(sides, key=merit)
    below = right[best].mean() - right
    return [row for row in best if float(below[row]) <= epsilon + 1e-9], [int(c) for c in clusters]


def levelled_accuracy(logits: Tensor, labels: Tensor, turns: int = 10) -> Tensor:
    """Each client's accuracy once its own class frequencies are taken out (ours): clients.

    A client that has seen some classes more often favours them by a constant for each class. The constants are fitted
    on one half of the samples, until the mean prediction has the half's class frequencies (there the likelihood is
    greatest), and the answers of the other half are judged with them; then the other way round. So what a one-sided
    client knows comes to light, and what a liar has spoilt stays spoilt.
    """
    scores, place = logits.double(), torch.argsort(torch.argsort(labels, stable=True))
    right = torch.zeros(logits.shape[:2], dtype=torch.double)
    for half in (0, 1):
        fitted, judged = place % 2 != half, place % 2 == half  # every class has its share in both
        if not fitted.any():
            fitted = judged
        shares = one_hot(labels[fitted], logits.shape[-1]).double().mean(0).clamp_min(1e-6)
        constants = torch.zeros(len(logits), 1, logits.shape[-1], dtype=torch.double)
        for _ in range(turns):
            means = softmax(scores[:, fitted] + constants, -1).mean(1, keepdim=True)
            constants = constants + shares.log() - means.clamp_min(1e-12).log()
        right[:, judged] = ((scores[:, judged] + constants).argmax(-1) == labels[judged]).double()
    return right.mean(1)


def trusted_by_accuracy(evidence: Tensor, apart: float, seed: int) -> tuple[list[int], list[int]]:
    """Split clients in two by a single number; the upper part is trusted, everybody where both parts are near.

    Returns the trusted rows and each row's cluster. Means that differ by no more than `apart` tell nobody apart.
    """
    rows = list(range(len(evidence)))
    if len(rows) < 2 or float(evidence.max() - evidence.min()) <= apart:
        return rows, [0] * len(rows)
    from sklearn.cluster import KMeans  # slow to import, and only needed here

    clusters = KMeans(2, n_init=10, random_state=seed % 2**32).fit_predict(evidence.double()[:, None].numpy())
    means = [float(evidence[torch.from_numpy(clusters == side)].mean()) for side in (0, 1)]
    upper = int(means[1] > means[0])
    if abs(means[1] - means[0]) <= apart:
        return rows, [int(c) for c in clusters]
    return [row for row in rows if clusters[row] == upper], [int(c) for c in clusters]


def fusion_weights(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """(10)–(12) Clients × classes: (1 − softmax over clients of the mean cross-entropy on the class) / (K − 1)."""
    count = len(logits)
    if count == 1:
        return torch.ones(1, logits.shape[-1], dtype=logits.dtype)
    member = one_hot(labels, logits.shape[-1]).to(logits.dtype)
    soft = logits / temperature
    loss = soft.logsumexp(-1) - soft.gather(-1, labels.expand(count, -1)[..., None])[..., 0]
    by_class = loss @ member / member.sum(0).clamp_min(1)
    return (1 - softmax(by_class, 0)) / (count - 1)


def fuse(
    logits: Tensor, labels: Tensor, temperature: float, server: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """(9)–(14) The global logits: the server's where it is right, else the weighted logits of clients that are.

    `weights` are those of (10)–(12), where they are known already.
    """
    weights = fusion_weights(logits, labels, temperature) if weights is None else weights
    if server is None:
        return _fused(logits, labels, weights)
    rest = (server.argmax(-1) != labels).nonzero()[:, 0]
    return server.index_copy(0, rest, _fused(logits[:, rest], labels[rest], weights))


def _fused(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    weight = weights[:, labels]
    right = (logits.argmax(-1) == labels).to(logits.dtype)
    masked = weight * right
    masked = torch.where(masked.sum(0) > 0, masked, right)  # the right ones all weigh nothing: equal among them
    masked = torch.where(right.sum(0) > 0, masked, weight)  # nobody is right: the class weights as they are
    return torch.einsum("kn,knc->nc", masked / masked.sum(0), logits)


def class_weights(logits: Tensor, labels: Tensor, beta: float, temperature: float) -> Tensor:
    """(17)–(19) How much of the loss is the teacher's, by class: (1 − β) times its mean margin, never below 0."""
    classes = logits.shape[-1]
    member = one_hot(labels, classes).to(logits.dtype)
    own = (softmax(logits / temperature, -1) * member).sum(-1)
    margin = own - (1 - own) / max(classes - 1, 1)
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
    """Each client's cluster; −1 for one whose logits are not finite."""
    evidence: Mapping[int, Tensor]
    """Of every client heard so far: its feature for each class, and last its accuracy on the public set."""
    features: Tensor
    """What the clusters were made from, a row for each client that answered; zeros for one that is not finite."""
    classes: tuple[int, ...]
    """The class of each column of `features`."""
    seconds: Mapping[str, float]


UNUSED_LEVELLED = ("epsilon", "margin", "centred", "memory")
"""Settings of (7) and (8), which the levelled rule does without."""


@gathers.register("identify")
@dataclass(frozen=True)
class Identify(Gather):
    """FedTKD's client identification (algorithm 1): only replies of trusted clients pass. For any logit method.

    FedTKD's own default is `Identify(levelled=0.05)`.
    """

    reads = (Carries.LOGITS,)
    epsilon: float = setting(0.1, ge=0, doc="how far below the trusted mean accuracy a trusted client may be (ε)")
    margin: float = setting(
        0.05, ge=0, doc="clusters no further apart in accuracy are told apart by their cosine to the server (0: never)"
    )
    centred: bool = setting(
        True, doc="logits are compared less their mean over classes, which a softmax cannot see (false: as they are)"
    )
    memory: float = setting(0.8, ge=0, lt=1, doc="share of what earlier rounds have shown (0: every round anew)")
    levelled: float = setting(
        0.0,
        ge=0,
        le=1,
        doc="judge a client by its accuracy without its own class frequencies, instead of (7) and (8): "
        "parts no further apart than this are both trusted (0: by (7) and (8))",
    )
    server_epochs: int = setting(2, ge=1, doc="epochs of the server's model on the public set, each round")
    server_lr: float = setting(1e-3, gt=0, doc="Adam's rate for the server's model")
    server_batch: int = setting(64, ge=1, doc="batch size for the server's model")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in UNUSED_LEVELLED:
            if self.levelled and name in changes(self):
                raise UsageError(
                    f"{name}: has no meaning beside levelled = {self.levelled:g}, which judges without it; "
                    "set levelled=0"
                )

    def init(self, env: Env, weights: State | None) -> Trust:
        """A server model that has seen nothing."""
        if env.public_classes is not None:
            raise UsageError("gather = identify: needs a public set of the data's own classes")
        nothing = torch.zeros(len(env.public), env.classes)
        return Trust(env.initial(), {}, nothing, (), (), (), {}, torch.zeros(0, 0), (), {})

    def gather(self, env: Env, state: Trust, replies: Sequence[Reply[Any]]) -> tuple[Trust, list[Reply[Any]]]:
        """Train the server's model, compare every client's logits with its, keep the trusted."""
        began = time.perf_counter()
        weights, memory, logits = self._train(env, state)
        trained = time.perf_counter()
        index = carried(replies[0].upload, Carries.ROWS)  # methods may speak of a part of the public set
        index = slice(None) if index is None else index
        labels = env.public.y[index]
        uploads = torch.stack([carried(reply.upload, Carries.LOGITS) for reply in replies])
        sound = torch.isfinite(uploads).flatten(1).all(1)
        seen = self._seen(torch.where(sound[:, None, None], uploads, 0.0), logits[index], labels)
        evidence = {
            reply.client: self._weighed(state.evidence.get(reply.client), row)
            for reply, row, fine in zip(replies, seen, sound.tolist(), strict=True)
            if fine
        }
        known = torch.stack([evidence.get(reply.client, torch.zeros_like(seen[0])) for reply in replies])
        features, accuracy = known[:, classes := torch.unique(labels)], known[:, -1]
        places = sound.nonzero()[:, 0].tolist()
        seed = env.key(f"k-means {env.round}")
        if self.levelled:  # every round anew: a client's class frequencies are taken out of this round's logits
            rows, sides = trusted_by_accuracy(levelled_accuracy(uploads[sound], labels), self.levelled, seed)
        else:
            rows, sides = trusted_clients(features[sound], accuracy[sound], self.epsilon, seed, self.margin)
        clusters = dict(zip(places, sides, strict=True))
        trusted = [replies[places[row]] for row in rows]
        spent = {"train": trained - began, "identify": time.perf_counter() - trained}
        trust = Trust(
            weights,
            memory,
            logits,
            tuple(r.client for r in replies),
            tuple(r.client for r in trusted),
            tuple(clusters.get(place, -1) for place in range(len(replies))),
            {**state.evidence, **evidence},
            features,
            tuple(classes.tolist()),
            spent,
        )
        return trust, trusted

    def _seen(self, uploads: Tensor, server: Tensor, labels: Tensor) -> Tensor:
        """Of each client in this round: its feature for every class (NaN for an absent one), and its accuracy."""
        accuracy = (uploads.argmax(-1) == labels).double().mean(-1)
        if self.centred:
            uploads, server = centred(uploads), centred(server)
        there, width = torch.unique(labels), server.shape[-1]
        seen = torch.full((len(uploads), width + 1), torch.nan, dtype=torch.double)
        seen[:, there] = client_features(uploads, server, labels).double()
        seen[:, -1] = accuracy
        return seen

    def _weighed(self, before: Tensor | None, seen: Tensor) -> Tensor:
        """What is known of a client: chance differs from round to round, what it does to its data does not."""
        if before is None:
            return seen
        both = self.memory * before + (1 - self.memory) * seen
        return both.where(both.isfinite(), before.where(before.isfinite(), seen))

    def _train(self, env: Env, state: Trust) -> tuple[State, Memory, Tensor]:
        module = env.module(state.weights)
        learner = Learner(module.train(), Adam(module.parameters(), self.server_lr)).recall(state.memory)
        images, labels = env.public.inputs().to(env.device), env.public.y.to(env.device)
        alone = refuses_one(module)
        lessons = minibatches(
            env, "server", images, labels, size=self.server_batch, epochs=self.server_epochs, drop_single=alone
        )
        for x, y in lessons:
            learner.step(cross_entropy(learner(x), y))
        return learner.weights, learner.memory, predict(module, images).cpu()

    def logits(self, env: Env, state: Trust) -> Tensor:
        """The server model's logits on the whole public set."""
        return state.logits

    def facts(self, env: Env, state: Trust) -> Mapping[str, Any]:
        """Who was trusted, and why."""
        return {
            "trusted": list(state.trusted),
            "answered": list(state.clients),
            "clusters": list(state.clusters),
            "features": state.features.tolist(),
            "feature_classes": list(state.classes),
            "module_seconds": dict(state.seconds),
        }
