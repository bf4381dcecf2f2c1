"""FedAvg: local training, then the average of the active clients' weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import Gather, Remember, Update, average
from fedstill.parts.learner import LocalTraining
from fedstill.parts.losses import cross_entropy


@record
class Global:
    """The server's state: the active aggregate w, and what the gather remembers."""

    weights: State
    memory: Any


@record
class Broadcast:
    """What every active client gets: w."""

    weights: State


@dataclass(frozen=True)
class Averaging(LocalTraining, Method[Global, Any, Any, Update]):
    """The half that weight-averaging methods share: w goes down, w_k comes up, the server averages."""

    gather: Gather = setting(Remember(), doc="what the server does with the replies (remember: also report `overall`)")

    def init_server(self, env: Env) -> Global:
        """w⁰, from the seed."""
        weights = env.initial()
        return Global(weights, self.gather.init(env, weights))

    def init_client(self, env: Env) -> Any:
        """A client keeps nothing, unless its gather asks it to."""
        return None

    def download(self, env: Env, server: Global) -> Any:
        """w."""
        return Broadcast(server.weights)

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Global:
        """w ← Σ n_k w_k / Σ n_k over the active clients."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        return Global(average(kept) if kept else server.weights, memory)

    def template(self, env: Env) -> Update:
        """Weights of the global model's form."""
        _, upload = self.gather.outgoing(env, None, env.form())
        return upload  # type: ignore[no-any-return]

    def models(self, env: Env, server: Global) -> Mapping[str, State]:
        """`active` (ACA) and, with `Remember`, `overall` (OCA)."""
        return {"active": server.weights, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: Global) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Averaging):
    """Local epochs of SGD on cross-entropy, then the weighted average."""

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w."""
        learner = self.learner(env, env.module(down.weights))
        for x, y in self.batches(env, data, learner.module):
            learner.step(cross_entropy(learner(x), y))
        return self.gather.outgoing(env, state, learner.weights)
