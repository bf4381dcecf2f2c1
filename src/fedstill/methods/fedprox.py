"""Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020."""

from dataclasses import dataclass
from typing import Any

import torch

from fedstill.core.method import Env, methods
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update
from fedstill.parts.losses import cross_entropy


@methods.register("fedprox")
@dataclass(frozen=True)
class FedProx(Averaging):
    """FedAvg with a penalty that keeps local models near the global one.

    Cross-entropy plus μ/2 ‖w − w_t‖²; μ = 0 is FedAvg.
    """

    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    made_for = ("clients are much alike",)
    private_learners = 1
    server_sums = "samples"
    mu: float = setting(0.001, ge=0, doc="strength of the proximal term (μ)")

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD; the gradient of the proximal term is μ (w − w_t)."""
        learner = self.learner(env, env.module(down.weights))
        anchor = [p.detach().clone() for p in learner.parameters]
        for x, y in self.batches(env, data, learner.module):
            with torch.no_grad():
                drift = torch._foreach_sub(learner.parameters, anchor)
            learner.step(cross_entropy(learner(x), y), shift=drift, pull=self.mu)
        return self.gather.outgoing(env, state, learner.weights)
