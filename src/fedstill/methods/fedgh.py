"""Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header.
ACM Multimedia 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.methods.fedproto import described
from fedstill.methods.local import Alone
from fedstill.parts.class_knowledge import Prototypes, common_width, no_prototypes
from fedstill.parts.heads import initial_head, same_heads, with_head
from fedstill.parts.learner import Learner, LocalTraining, minibatches, optimizer_of
from fedstill.parts.losses import cross_entropy


@record
class GlobalHead:
    """The server's state, and what goes down: the head."""

    head: State


@methods.register("fedgh")
@dataclass(frozen=True)
class FedGH(LocalTraining, Method[GlobalHead, Alone, GlobalHead, Prototypes]):
    """Clients with different networks share one head, which the server trains on the mean features of each class.

    Local training with the global head in place; class-mean features go up and train it.
    """

    paper = "Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023"
    one_architecture = False
    needs_features = True
    one_download = True
    server_lr: float = setting(0.01, gt=0, doc="learning rate of the global head")
    server_epochs: int = setting(1, ge=1, doc="passes over the round's class means")
    server_batch: int = setting(1, ge=1, doc="class means in a step of the head")

    def init_server(self, env: Env) -> GlobalHead:
        """The head, from the seed; all clients' must be of its form."""
        same_heads(env, "fedgh")
        return GlobalHead(initial_head(env))

    def init_client(self, env: Env) -> Alone:
        """A model of the client's own architecture."""
        return Alone(env.initial(env.client), {})

    def download(self, env: Env, server: GlobalHead) -> GlobalHead:
        """The head."""
        return server

    def client(self, env: Env, state: Alone, down: GlobalHead, data: Samples) -> tuple[Alone, Prototypes]:
        """E epochs of SGD from the own body and the global head; then the mean features of each class."""
        module = with_head(env, state.weights, down.head, env.client)
        learner = self.learner(env, module).recall(state.memory)
        self.train(env, learner, data)
        return Alone(learner.weights, learner.memory), described(env, module, data)

    def server(self, env: Env, server: GlobalHead, replies: Sequence[Reply[Prototypes]]) -> GlobalHead:
        """Train the head on all pairs of mean features and class."""
        points = torch.cat([r.upload.means[r.upload.seen] for r in replies]).to(env.device)
        labels = torch.cat([r.upload.seen.nonzero().flatten() for r in replies]).to(env.device)
        module: Any = env.module()
        module.head.load_state_dict(server.head)
        student = Learner(module.head, optimizer_of("sgd", module.head, self.server_lr))
        for x, y in minibatches(env, "head", points, labels, size=self.server_batch, epochs=self.server_epochs):
            student.step(cross_entropy(student(x), y))
        return GlobalHead(student.weights)

    def template(self, env: Env) -> Prototypes:
        """A vector for every class, and which are there."""
        blank = no_prototypes(env.classes, common_width(env))
        return Prototypes(blank.means, blank.known)

    def own(self, env: Env, state: Alone) -> State:
        """The client's model, as it trained it."""
        return state.weights
