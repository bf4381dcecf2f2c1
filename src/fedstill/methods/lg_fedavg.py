"""Liang, Liu, Liu, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations. NeurIPS workshop 2019, arXiv 2001.01523.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.methods.local import Alone
from fedstill.parts.averaging import Broadcast, Global
from fedstill.parts.gather import Chain, Everyone, Gather, Remember, Update, average
from fedstill.parts.heads import head_of, initial_head, same_heads, with_head
from fedstill.parts.learner import LocalTraining, weights_of


@methods.register("lg-fedavg")
@dataclass(frozen=True)
class LGFedAvg(LocalTraining, Method[Global, Alone, Broadcast, Update]):
    """Every client keeps a body of its own; only the head travels and is averaged."""

    paper = "Liang et al., Think Locally, Act Globally: FL with Local and Global Representations, 2020"
    private_learners = 1
    server_sums = "samples"
    one_architecture = False
    needs_features = True
    one_download = True
    gather: Gather = setting(Everyone(), doc="what the server does with the replies (a robust rule, say)")

    def __post_init__(self) -> None:
        super().__post_init__()
        members = self.gather.gathers if isinstance(self.gather, Chain) else (self.gather,)
        if any(isinstance(member, Remember) for member in members):
            raise UsageError("gather = remember: lg-fedavg has no global model to report, only a head")

    def init_server(self, env: Env) -> Global:
        """The head, from the seed; all clients' must be of its form."""
        same_heads(env, "lg-fedavg")
        head = initial_head(env)
        return Global(head, self.gather.init(env, head))

    def init_client(self, env: Env) -> Alone:
        """A model of the client's own architecture."""
        return Alone(env.initial(env.client), {})

    def download(self, env: Env, server: Global) -> Broadcast:
        """The head."""
        return Broadcast(server.weights)

    def client(self, env: Env, state: Alone, down: Broadcast, data: Samples) -> tuple[Alone, Update]:
        """E epochs of SGD from the own body and the global head."""
        module = with_head(env, state.weights, down.weights, env.client)
        learner = self.learner(env, module).recall(state.memory)
        self.train(env, learner, data)
        return Alone(learner.weights, learner.memory), Update(weights_of(module.head))

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Global:
        """The head ← Σ n_k head_k / Σ n_k over the active clients."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        return Global(average(kept) if kept else server.weights, memory)

    def template(self, env: Env) -> Update:
        """A head."""
        return Update(head_of(env))

    def own(self, env: Env, state: Alone) -> State:
        """The client's model, as it trained it."""
        return state.weights

    def facts(self, env: Env, server: Global) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)
