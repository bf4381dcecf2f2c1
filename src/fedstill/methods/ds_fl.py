"""Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data. IEEE Transactions on Mobile
Computing 2023 (arXiv 2020).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.nn.functional import softmax

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import by_field, setting
from fedstill.methods.logits import LogitExchange
from fedstill.parts.distil import Lesson, distil, soft_kl
from fedstill.parts.learner import Learner, Memory, optimizer_of
from fedstill.parts.public_logits import Exchange, PublicLogits, Wisdom


@record
class Distilling(Exchange):
    """The server's state: what it sends next and knows of the last round, its own model, and its optimiser's state."""

    weights: State
    adam: Memory


@methods.register("ds-fl")
@dataclass(frozen=True)
class DSFL(LogitExchange):
    """Clients agree on soft labels of unlabelled public samples, and the server sharpens what they agree on.

    Mean of the clients' soft labels, sharpened (ERA); clients and the server's model learn from it.
    """

    paper = "Itahara et al., Distillation-Based Semi-Supervised Federated Learning, IEEE TMC 2023"
    same_classes = True
    aggregate: Literal["era", "mean"] = setting("era", doc="era: softmax(mean / T), of less entropy; mean: as it is")
    temperature: float = setting(0.1, gt=0, doc="temperature of the sharpening (T)")
    digest: int = setting(1, ge=1, doc="epochs of distillation in a round, on clients and server")

    def init_server(self, env: Env) -> Distilling:
        """No global soft labels yet; the server's model, from the seed."""
        return Distilling(**exchanged(super().init_server(env)), weights=env.initial(), adam={})

    def study(self, env: Env, learner: Learner, turns: int, down: Wisdom) -> None:
        """Distil: KL(global soft label ‖ prediction) on the public samples; their labels are never looked at."""
        if down.logits is not None and down.index is not None:
            targets = softmax(down.logits, -1).to(env.device)
            for logits, _, at in self.lessons(env, learner, down.index, self.digest):
                learner.step(free=soft_kl(targets[at], logits))

    def conclude(
        self, env: Env, logits: Tensor, labels: Tensor, server: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Mapping[str, float]]:
        """Logits whose softmax is the global soft label: the clients' mean soft label, sharpened or not."""
        began = time.perf_counter()
        mean = softmax(logits, -1).mean(0)
        agreed = mean / self.temperature if self.aggregate == "era" else mean.clamp_min(1e-30).log()
        return agreed, None, {"fuse": time.perf_counter() - began}

    def server(self, env: Env, server: Exchange, replies: Sequence[Reply[PublicLogits]]) -> Exchange:
        """The global soft labels; then the server's own model learns from them."""
        after = super().server(env, server, replies)
        assert isinstance(after, Distilling)
        if after.wisdom.logits is None or after.wisdom is server.wisdom:
            return after
        module = env.module(after.weights).train()
        student = Learner(module, optimizer_of(self.optimizer, module, self.rate(env), self.momentum)).recall(
            after.adam
        )
        inputs = env.public.inputs(after.wisdom.index).to(env.device)
        lesson = Lesson(inputs, softmax(after.wisdom.logits, -1).to(env.device))
        distil(env, student, lesson, batch=self.batch, epochs=self.digest)
        return Distilling(**exchanged(after), weights=student.weights, adam=student.memory)

    def models(self, env: Env, server: Exchange) -> Mapping[str, State]:
        """`global`: the server's own model, which has seen public samples only."""
        assert isinstance(server, Distilling)
        return {"global": server.weights}


def exchanged(exchange: Exchange) -> dict[str, Any]:
    """The fields that every logit method's server keeps."""
    return by_field(exchange, Exchange)
