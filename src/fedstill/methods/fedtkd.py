"""Chen, Zhang, Dong, Zhao, Zeng, Qiao, Zhu, Tan: FedTKD: A Trustworthy Heterogeneous Federated Learning Based on
Adaptive Knowledge Distillation. Entropy 2024.
Equation numbers are the paper's; the method page lists every choice.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from fedstill.core.method import Env, methods
from fedstill.core.value import setting
from fedstill.methods.logits import LogitExchange
from fedstill.parts.gather import Gather
from fedstill.parts.learner import Learner
from fedstill.parts.losses import cross_entropy
from fedstill.parts.public_logits import Wisdom
from fedstill.parts.trust import Identify, class_weights, fuse, fusion_weights


@methods.register("fedtkd")
@dataclass(frozen=True)
class FedTKD(LogitExchange):
    """Clients with different networks exchange logits only; what trusted clients know is fused and distilled.

    Algorithm 4: identify, fuse, weigh on the server; distil on public data, train on private data on the client.
    """

    paper = (
        "Chen et al., FedTKD: A Trustworthy Heterogeneous Federated Learning Based on Adaptive Knowledge Distillation"
    )
    made_for = ("clients may have different networks",)
    same_classes = True
    temperature: float = setting(3.0, gt=0, doc="T of the teacher's softmax (10, 20)")
    student_T: float = setting(1.0, gt=0, doc="temperature of the student in the distillation loss")  # noqa: N815
    beta: float = setting(0.8, ge=0, le=1, doc="keeps the teacher's weight below 1 − β (19)")
    gather: Gather = setting(Identify(levelled=0.05), doc="who is believed (identify: algorithm 1 or a rule beside it)")

    def study(self, env: Env, learner: Learner, turns: int, down: Wisdom) -> None:
        """Algorithm 3, step 1: one epoch on the public set by (23)."""
        for logits, labels, at in self.lessons(env, learner, self.rows(env)):
            learner.step(free=self.public_loss(logits, labels, at, down))

    def public_loss(self, logits: Tensor, labels: Tensor, at: Tensor, down: Wisdom) -> Tensor:
        """(23) (1 − w_y) CE + w_y KD, sample by sample; CE alone while there are no global logits."""
        if down.logits is None or down.weights is None:
            return cross_entropy(logits, labels)
        teacher = softmax(down.logits.to(logits.device)[at] / self.temperature, -1)  # (20)
        taught = -(teacher * log_softmax(logits / self.student_T, -1)).sum(-1)  # (22), and no T²
        weight = down.weights.to(logits.device)[labels]
        return ((1 - weight) * cross_entropy(logits, labels, reduction="none") + weight * taught).mean()

    def conclude(
        self, env: Env, logits: Tensor, labels: Tensor, server: Tensor | None
    ) -> tuple[Tensor, Tensor, Mapping[str, float]]:
        """Fuse (algorithm 2), weigh (17)–(19).

        The paper's "calculate weight" (table 6) grows with the clients, so it holds (10)–(12) as well.
        """
        began = time.perf_counter()
        shares = fusion_weights(logits, labels, self.temperature)
        weighed = time.perf_counter()
        fused = fuse(logits, labels, self.temperature, server, shares)
        ended = time.perf_counter()
        weights = class_weights(fused, labels, self.beta, self.temperature)
        return fused, weights, {"fuse": ended - weighed, "weigh": weighed - began + time.perf_counter() - ended}
