"""Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning. AAAI 2024.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.rng import seeded
from fedstill.core.value import setting
from fedstill.methods.fedproto import PrototypeExchange
from fedstill.parts.class_knowledge import GlobalPrototypes, Prototypes, by_class, common_width
from fedstill.parts.learner import Learner, minibatches, optimizer_of, weights_of
from fedstill.parts.losses import cross_entropy


@record
class Trainable:
    """The server's state: the network that makes prototypes, the classes it has seen, and the last round's margin."""

    network: State
    known: Tensor
    margin: float


class PrototypeNetwork(nn.Module):
    """A vector for each class, from an embedding through two layers (final)."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        """The prototypes of all classes."""
        made: Tensor = self.layers(self.embedding.weight)
        return made


@methods.register("fedtgp")
@dataclass(frozen=True)
class FedTGP(PrototypeExchange):
    """FedProto whose global prototypes are trained on the server, to stay apart by an adaptive margin.

    Clients as in FedProto; the server trains prototypes by contrast with a margin δ = min(gap of classes, τ).
    """

    paper = "Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning, 2024"
    made_for = ("clients may have different networks",)
    one_download = True
    tau: float = setting(100.0, gt=0, doc="largest margin (τ)")
    server_epochs: int = setting(100, ge=1, doc="passes over the round's prototypes (S)")
    server_lr: float = setting(0.01, gt=0, doc="learning rate of the server")

    def make_network(self, env: Env, weights: State | None = None) -> PrototypeNetwork:
        """The network that makes prototypes, with these weights or those it starts from."""
        with seeded(env.at(0).key("prototypes")):
            made = PrototypeNetwork(env.classes, common_width(env))
        made.load_state_dict(weights or made.state_dict())
        return made.to(env.device)

    def init_server(self, env: Env) -> Trainable:
        """An untrained network; no class is known."""
        return Trainable(weights_of(self.make_network(env)), torch.zeros(env.classes, dtype=torch.bool), 0.0)

    def download(self, env: Env, server: Trainable) -> GlobalPrototypes:
        """Prototypes of the classes that anybody has had."""
        with torch.no_grad():
            return GlobalPrototypes(self.make_network(env, server.network)().cpu(), server.known)

    def server(self, env: Env, server: Trainable, replies: Sequence[Reply[Prototypes]]) -> Trainable:
        """S passes over all clients' prototypes, each to be nearer to its class's than to any other's, by δ."""
        prototypes, seen = [r.upload.means for r in replies], [r.upload.seen for r in replies]
        points = torch.cat([means[there] for means, there in zip(prototypes, seen, strict=True)]).to(env.device)
        labels = torch.cat([there.nonzero().flatten() for there in seen]).to(env.device)
        margin = min(class_gap(prototypes, seen), self.tau)
        network = self.make_network(env, server.network).train()
        learner = Learner(network, optimizer_of("sgd", network, self.server_lr))
        for some, y in minibatches(env, "prototypes", points, labels, size=self.batch, epochs=self.server_epochs):
            learner.step(contrast(some, y, network(), margin))
        known = server.known | torch.stack(seen).any(0)
        return Trainable(learner.weights, known, margin)

    def facts(self, env: Env, server: Trainable) -> Mapping[str, Any]:
        """How many classes have a prototype, and the margin of the last round."""
        return {"known_classes": int(server.known.sum()), "margin": server.margin}


def contrast(points: Tensor, y: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Cross-entropy of minus the distances to all prototypes, that to the own class's made longer by the margin."""
    apart = (points.unsqueeze(1) - prototypes).square().sum(-1).clamp_min(1e-12).sqrt()
    own = nn.functional.one_hot(y, len(prototypes)).to(apart.dtype)
    return cross_entropy(-(apart + margin * own), y)


def class_gap(prototypes: Sequence[Tensor], seen: Sequence[Tensor]) -> float:
    """How far apart classes are: the distance to the nearest other class's mean prototype, of the class most alone.

    `prototypes`, `seen`: every client's prototypes and which classes it has. 0 where there is one class only.
    """
    means, known = by_class(torch.zeros_like(prototypes[0]), torch.zeros_like(seen[0]), prototypes, seen)
    there = means[known]
    if len(there) < 2:
        return 0.0
    apart = torch.cdist(there.double(), there.double()).fill_diagonal_(torch.inf)
    return float(apart.min(1).values.max())
