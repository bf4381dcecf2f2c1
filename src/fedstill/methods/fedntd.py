"""Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.
NeurIPS 2022.
"""

from dataclasses import dataclass
from typing import Any

import torch

from fedstill.core.method import Env, methods
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update
from fedstill.parts.learner import frozen
from fedstill.parts.losses import cross_entropy
from fedstill.parts.not_true import not_true_kl


@methods.register("fedntd")
@dataclass(frozen=True)
class FedNTD(Averaging):
    """A client keeps what the received model knows of the classes that a sample does not belong to.

    CE + β KL over the not-true classes, the received model teaching; β = 0 is FedAvg.
    """

    paper = "Lee et al., Preservation of the Global Knowledge by Not-True Distillation in FL, NeurIPS 2022"
    private_learners = 1
    server_sums = "samples"
    beta: float = setting(1.0, ge=0, doc="weight of the not-true distillation (β)")
    tau: float = setting(1.0, gt=0, doc="temperature of the not-true classes (τ)")

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w, which also teaches (4): L = L_CE + β L_NTD."""
        learner = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.weights)) if self.beta else None
        for x, y in self.batches(env, data, learner.module):
            logits = learner(x)
            loss = cross_entropy(logits, y)
            if teacher is not None:
                with torch.no_grad():
                    global_logits = teacher(x)
                loss = loss + self.beta * not_true_kl(global_logits, logits, y, self.tau)
            learner.step(loss)
        return self.gather.outgoing(env, state, learner.weights)
