"""Training with all samples in one place: what is left for a federation to gain?

This is no federation: one party holds what all clients hold. The clients' local tests stay those of the split, so AMP,
FM and WLP can be compared with a federated run's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Broadcast
from fedstill.parts.learner import LocalTraining, Memory


@record
class Trained:
    """The model after a round; whoever made it has seen every client's samples."""

    weights: State = carries(Carries.SAMPLES)


@record
class OptimizerState:
    """What the one party keeps between rounds: its optimiser's state."""

    memory: Memory


@methods.register("centralised")
@dataclass(frozen=True)
class Centralised(LocalTraining, Method[Trained, OptimizerState, Broadcast, Trained]):
    """All clients' samples are trained on in one place: no federation, but the yardstick above any."""

    paper = "none: all data in one place, the yardstick above any federation"
    federated = False
    one_download = True
    epochs: int = setting(1, ge=1, doc="epochs over all samples in a round (FedAvg with E and C sees as many in C·E)")

    def init_server(self, env: Env) -> Trained:
        """w⁰, from the seed: FedAvg's."""
        return Trained(env.initial())

    def init_client(self, env: Env) -> OptimizerState:
        """A fresh optimiser."""
        return OptimizerState({})

    def download(self, env: Env, server: Trained) -> Broadcast:
        """w."""
        return Broadcast(server.weights)

    def client(self, env: Env, state: OptimizerState, down: Broadcast, data: Samples) -> tuple[OptimizerState, Trained]:
        """Epochs of SGD from w; `data` are the samples of all clients."""
        learner = self.learner(env, env.module(down.weights)).recall(state.memory)
        self.train(env, learner, data)
        return OptimizerState(learner.memory), Trained(learner.weights)

    def server(self, env: Env, server: Trained, replies: Sequence[Reply[Trained]]) -> Trained:
        """There is one reply, and it is the model."""
        return replies[0].upload

    def template(self, env: Env) -> Trained:
        """Weights of the model's form."""
        return Trained(env.form())

    def models(self, env: Env, server: Trained) -> Mapping[str, State]:
        """`centralised`."""
        return {"centralised": server.weights}
