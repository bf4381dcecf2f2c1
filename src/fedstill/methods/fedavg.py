"""McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.
"""

from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Env, methods
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Averaging):
    """Clients train on their own samples; the server averages the active clients' weights."""

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    made_for = ("clients are much alike",)
    private_learners = 1
    server_sums = "samples"

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w."""
        learner = self.learner(env, env.module(down.weights))
        self.train(env, learner, data)
        return self.gather.outgoing(env, state, learner.weights)
