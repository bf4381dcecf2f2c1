"""FedAvg: local training, then the average of the active clients' weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.
"""

from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Env, methods
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update
from fedstill.parts.losses import cross_entropy


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Averaging):
    """Local epochs of SGD on cross-entropy, then the weighted average."""

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    private_learners = 1
    server_sums = "samples"

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w."""
        learner = self.learner(env, env.module(down.weights))
        for x, y in self.batches(env, data, learner.module):
            learner.step(cross_entropy(learner(x), y))
        return self.gather.outgoing(env, state, learner.weights)
