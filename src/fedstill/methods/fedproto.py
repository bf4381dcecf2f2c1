"""Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients.
AAAI 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.class_knowledge import (
    GlobalPrototypes,
    Prototypes,
    by_class,
    class_means,
    common_width,
    nearest_prototype,
    no_prototypes,
    prototype_gap,
    shortened,
)
from fedstill.parts.learner import Learner, LocalTraining, Memory, features_of
from fedstill.parts.losses import cross_entropy


@record
class Personal:
    """What stays on a client: its model, its optimiser's state, and the prototypes it was last sent."""

    weights: State
    memory: Memory
    prototypes: GlobalPrototypes


@dataclass(frozen=True)
class PrototypeExchange(LocalTraining, Method[Any, Personal, GlobalPrototypes, Prototypes]):
    """The client's half of FedProto and FedTGP: CE + λ MSE(features, prototype); then its own prototypes go up."""

    needs_features = True
    one_architecture = False
    weight: float = setting(1.0, ge=0, doc="weight of the distance to the class's prototype (λ)")
    predict: Literal["head", "prototypes"] = setting(
        "head",
        doc="a client predicts by its own head, or (networks that end in one linear layer) the nearest prototype",
    )

    def init_client(self, env: Env) -> Personal:
        """A model of the client's own architecture; no prototypes yet."""
        self.own(env, first := Personal(env.initial(env.client), {}, no_prototypes(env.classes, common_width(env))))
        return first

    def client(self, env: Env, state: Personal, down: GlobalPrototypes, data: Samples) -> tuple[Personal, Prototypes]:
        """E epochs of SGD on CE + λ MSE; then the mean features of each class, as the trained network sees them."""
        learner = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        means, known = down.means.to(env.device), down.known.to(env.device)
        for x, y in self.batches(env, data, learner.module):
            learner.step(self.loss(learner, x, y, means, known))
        return Personal(learner.weights, learner.memory, down), described(env, learner.module, data)

    def loss(self, learner: Learner, x: Tensor, y: Tensor, means: Tensor, known: Tensor) -> Tensor:
        """CE + λ MSE; a sample whose class has no prototype yet adds nothing to the second term."""
        module: Any = learner.module
        features = module.features(x)
        near = prototype_gap(shortened(features, means.shape[1]), y, means, known) if self.weight else 0.0
        return cross_entropy(module.head(features), y) + self.weight * near

    def template(self, env: Env) -> Prototypes:
        """A vector for every class, and which are there."""
        blank = no_prototypes(env.classes, common_width(env))
        return Prototypes(blank.means, blank.known)

    def own(self, env: Env, state: Personal) -> State:
        """The client's model, its head replaced where the nearest prototype predicts."""
        if self.predict == "head":
            return state.weights
        classifier = nearest_prototype(env.module(state.weights, env.client), state.prototypes)
        if classifier is None:
            raise UsageError("predict = prototypes: client models must end in a single linear layer; use predict=head")
        return classifier


@methods.register("fedproto")
@dataclass(frozen=True)
class FedProto(PrototypeExchange):
    """Clients with different networks share the mean features of each class, and stay near the global ones.

    Algorithm 1: local prototypes up, their mean per class down.
    """

    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    made_for = ("clients may have different networks",)
    one_download = True

    def init_server(self, env: Env) -> GlobalPrototypes:
        """No prototypes yet."""
        return no_prototypes(env.classes, common_width(env))

    def download(self, env: Env, server: GlobalPrototypes) -> GlobalPrototypes:
        """The global prototypes."""
        return server

    def server(self, env: Env, server: GlobalPrototypes, replies: Sequence[Reply[Prototypes]]) -> GlobalPrototypes:
        """Per class, the mean over the clients that have it; a class that nobody has keeps its prototype."""
        means, seen = [r.upload.means for r in replies], [r.upload.seen for r in replies]
        return GlobalPrototypes(*by_class(server.means, server.known, means, seen))

    def facts(self, env: Env, server: GlobalPrototypes) -> Mapping[str, Any]:
        """How many classes have a prototype."""
        return {"known_classes": int(server.known.sum())}


def described(env: Env, module: Any, data: Samples) -> Prototypes:
    """A client's prototypes: the mean features of each of its classes, in evaluation mode."""
    features = features_of(module, data.inputs().to(env.device))
    means, counts = class_means(shortened(features, common_width(env)), data.y.to(env.device), env.classes)
    return Prototypes(means.cpu(), (counts > 0).cpu())
