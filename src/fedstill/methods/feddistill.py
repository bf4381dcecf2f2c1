"""Jiang, Shan, Zhang: Federated Learning Algorithm Based on Knowledge Distillation. ICAICE 2020; as FedTKD describes it
(no public code exists: the method page says what is our reading).
"""

from dataclasses import dataclass

from torch import Tensor

from fedstill.core.method import Env, methods
from fedstill.core.value import setting
from fedstill.methods.logits import LogitExchange
from fedstill.parts.learner import Learner
from fedstill.parts.losses import cross_entropy, kl
from fedstill.parts.public_logits import Wisdom


@methods.register("feddistill")
@dataclass(frozen=True)
class FedDistill(LogitExchange):
    """The mean of the clients' logits on a public set teaches every client, beside the labels.

    α CE + (1 − α) KL(global logits ‖ own) on the public set (FedTKD, 15), then CE on the private one.
    """

    paper = "Jiang et al., Federated Learning Algorithm Based on Knowledge Distillation, ICAICE 2020"
    alpha: float = setting(0.5, ge=0, le=1, doc="weight of the labels against the teacher (α)")
    temperature: float = setting(3.0, gt=0, doc="temperature of teacher and student")

    def study(self, env: Env, learner: Learner, turns: int, down: Wisdom) -> None:
        """One epoch on the public set; labels alone while there are no global logits."""
        for logits, labels, at in self.lessons(env, learner, self.rows(env)):
            learner.step(free=self.public_loss(logits, labels, at, down))

    def public_loss(self, logits: Tensor, labels: Tensor, at: Tensor, down: Wisdom) -> Tensor:
        """α CE + (1 − α) t² KL."""
        if down.logits is None:
            return cross_entropy(logits, labels)
        taught = kl(down.logits.to(logits.device)[at], logits, self.temperature)
        return self.alpha * cross_entropy(logits, labels) + (1 - self.alpha) * taught
