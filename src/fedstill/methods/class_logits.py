"""What the two forms of FedDistill+ share: the loss, the mean logits of each class on the way, records, settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Method
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.methods.fedhe import ClassWisdom, MeanLogits
from fedstill.parts.gather import Gather, Remember
from fedstill.parts.learner import Learner, LocalTraining, Memory
from fedstill.parts.losses import cross_entropy, kl


@record
class MeanLogitsAndWeights(MeanLogits):
    """What leaves a client that shares its weights too."""

    weights: State = carries(Carries.WEIGHTS)


@record
class ClassWisdomAndWeights(ClassWisdom):
    """What goes down where weights are shared: class logits and w."""

    weights: State = carries(Carries.WEIGHTS)


@record
class Shared:
    """The server's state: global mean logits per class, w (None: not shared), and what the gather remembers."""

    wisdom: ClassWisdom
    weights: State | None
    memory: Any


@record
class Own:
    """What stays on a client: its last model, and its optimiser's state where nobody else touches that model."""

    weights: State
    memory: Memory


@dataclass(frozen=True)
class ClassLogits(LocalTraining):
    """The settings of both forms."""

    private_learners = 1
    gamma: float = setting(1.0, ge=0, doc="weight of the distillation")
    gather: Gather = setting(
        Remember(), doc="what the server does with the replies (everyone, where no weights travel)"
    )


@dataclass(frozen=True)
class Form(ClassLogits, Method[Shared, Own, Any, Any]):
    """What both forms share: the loss, the mean logits of each class on the way, and what is reported."""

    def taught(self, env: Env, learner: Learner, down: ClassWisdom, data: Samples) -> tuple[Tensor, Tensor]:
        """E epochs; the logits of each class, averaged as the samples passed, and which classes there were."""
        class_logits, known = down.logits.to(env.device), down.known.to(env.device)
        total, count = torch.zeros_like(class_logits), torch.zeros_like(known, dtype=class_logits.dtype)
        for x, y in self.batches(env, data, learner.module):
            logits = learner(x)
            learner.step(self.loss(logits, y, class_logits, known))
            total.index_add_(0, y, logits.detach())
            count.index_add_(0, y, torch.ones_like(y, dtype=count.dtype))
        return (total / count.clamp_min(1).unsqueeze(1)).cpu(), (count > 0).cpu()

    def loss(self, logits: Tensor, y: Tensor, class_logits: Tensor, known: Tensor) -> Tensor:
        """CE + γ KL(p̄_y ‖ p), the KL over samples whose class is known; a batch's unknown samples count as 0."""
        loss, taught = cross_entropy(logits, y), known[y]
        if self.gamma and taught.any():
            loss = loss + self.gamma * taught.float().mean() * kl(class_logits[y[taught]], logits[taught])
        return loss

    def own(self, env: Env, state: Own) -> State:
        """The client's model after its last turn."""
        return state.weights

    def facts(self, env: Env, server: Shared) -> Mapping[str, Any]:
        """How many classes are known, and what the gather reports."""
        return {"known_classes": int(server.wisdom.known.sum()), **self.gather.facts(env, server.memory)}


def nothing_known(env: Env) -> ClassWisdom:
    """No class has global logits."""
    return ClassWisdom(torch.zeros(env.classes, env.classes), torch.zeros(env.classes).bool())
