"""Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning. ICLR 2020 (q-FedAvg)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast, Global
from fedstill.parts.gather import Update, stepped
from fedstill.parts.learner import parameter_names, predict
from fedstill.parts.losses import cross_entropy


@record
class Assessed(Update):
    """What leaves a client: its weights, and the loss of w on its data before it trained."""

    loss: Tensor = carries(Carries.LOSS)


@methods.register("q-ffl")
@dataclass(frozen=True)
class QFFL(Averaging):
    """Clients with a high loss count more, so that accuracies become more even.

    q-FedAvg: w ← w − ΣΔ_k / Σh_k; q = 0 is the plain mean of the clients' weights.
    """

    paper = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"
    private_learners = 1
    q: float = setting(1e-4, ge=0, doc="how much more a high loss counts (q)")

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Assessed]:
        """F_k(w), then E epochs of SGD from w."""
        learner = self.learner(env, env.module(down.weights))
        loss = cross_entropy(predict(learner.module, data.inputs().to(env.device)), data.y.to(env.device))
        self.train(env, learner, data)
        return state, Assessed(learner.weights, loss.cpu())

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Any]]) -> Global:
        """The fair step from w; `overall` still comes from the gather."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Global(server.weights, memory)
        uploads = [r.upload for r in kept if r.upload is not None]
        weights = fair_step(server.weights, uploads, self.q, self.rate(env), parameter_names(env))
        return Global(weights, memory)

    def template(self, env: Env) -> Assessed:
        """Weights of the global model's form and a number."""
        return Assessed(env.form(), torch.zeros(()))

    def objection(self, env: Env, upload: Update) -> str | None:
        """A loss is not negative."""
        loss = upload.loss if isinstance(upload, Assessed) else torch.zeros(())
        return None if loss >= 0 else f"a loss of {float(loss):g}"


def fair_step(weights: State, uploads: Sequence[Assessed], q: float, lr: float, trained: Collection[str]) -> State:
    """Algorithm 2: Δ_k = F_k^q (w − w_k)/lr, h_k = q F_k^{q−1} ‖(w − w_k)/lr‖² + F_k^q/lr, w ← w − ΣΔ_k/Σh_k.

    In float64, over the `trained` parameters; buffers, which no gradient moves, become their plain mean.
    """
    pulls, scale = [], 0.0
    for upload in uploads:
        loss = float(upload.loss) + 1e-10
        length = sum(float(((weights[n].double() - upload.weights[n].double()) / lr).square().sum()) for n in trained)
        pulls.append(loss**q / lr)
        scale += q * loss ** (q - 1) * length + loss**q / lr
    return stepped(weights, [upload.weights for upload in uploads], [pull / scale for pull in pulls], trained)
