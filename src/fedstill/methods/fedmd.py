"""Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation.
NeurIPS workshop on federated learning 2019.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.core.method import Env, methods
from fedstill.core.value import setting
from fedstill.methods.logits import LogitExchange
from fedstill.parts.learner import Learner
from fedstill.parts.losses import cross_entropy
from fedstill.parts.public_logits import Wisdom


@methods.register("fedmd")
@dataclass(frozen=True)
class FedMD(LogitExchange):
    """Clients with different networks agree, round by round, on the logits of public samples.

    Algorithm 1: communicate, aggregate (the mean), digest (match it), revisit (private samples).
    """

    paper = "Li and Wang, FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS workshop 2019"
    made_for = ("clients may have different networks",)
    pretrain: int = setting(
        1, ge=0, doc="epochs on the labelled public set before a client's first turn (0: no labels needed)"
    )
    digest: int = setting(1, ge=1, doc="epochs of matching the consensus in a round")
    alignment: int | None = setting(None, ge=1, doc="public samples of a round, drawn anew for each (none: all)")

    def rows(self, env: Env) -> Tensor:
        """The round's alignment samples, the same for everyone."""
        count = len(env.public)
        if self.alignment is None or self.alignment >= count:
            return torch.arange(count)
        order = torch.randperm(count, generator=env.at(env.round).stream("alignment"))
        return order[: self.alignment].sort().values

    def study(self, env: Env, learner: Learner, turns: int, down: Wisdom) -> None:
        """Transfer learning in the first turn; then digest: mean |f_k(x) − consensus|."""
        if turns == 0 and self.pretrain:
            every = torch.arange(len(env.public))
            for logits, labels, _ in self.lessons(env, learner, every, self.pretrain, purpose="pretraining"):
                learner.step(free=cross_entropy(logits, labels))
        if down.logits is not None and down.index is not None:
            consensus = down.logits.to(env.device)
            for logits, _, at in self.lessons(env, learner, down.index, self.digest):
                learner.step(free=(logits - consensus[at]).abs().mean())
