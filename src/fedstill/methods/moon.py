"""Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update
from fedstill.parts.learner import frozen
from fedstill.parts.losses import contrast, cross_entropy


@record
class Previous:
    """What stays on a client: its model of the last turn, and what the gather keeps."""

    weights: State
    kept: Any


@methods.register("moon")
@dataclass(frozen=True)
class Moon(Averaging):
    """A client's features are to resemble the global model's more than those of its own last model.

    CE + μ ℓ_con (5), on features of the local, the global and the previous local model; μ = 0 is FedAvg.
    """

    paper = "Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021"
    made_for = ("labels differ much from client to client",)
    needs_features = True
    private_learners = 1
    server_sums = "samples"
    tau: float = setting(0.5, gt=0, doc="temperature of the similarities (τ)")
    mu: float = setting(1.0, ge=0, doc="weight of the contrast (μ)")

    def client(self, env: Env, state: Previous | None, down: Broadcast, data: Samples) -> tuple[Previous, Update]:
        """E epochs of SGD from w; in a first turn the previous model is w itself, and the contrast without gradient."""
        module = env.module(down.weights)
        learner = self.learner(env, module)
        near = far = None
        if state is not None and self.mu:
            near, far = frozen(env.module(down.weights)), frozen(env.module(state.weights))
        for x, y in self.batches(env, data, module):
            if near is None or far is None:
                learner.step(cross_entropy(learner(x), y))
                continue
            with learner.watched():
                features = module.features(x)
                logits: Tensor = module.head(features)
            with torch.no_grad():
                wanted, left = near.features(x), far.features(x)
            learner.step(cross_entropy(logits, y) + self.mu * contrast(features, wanted, left, self.tau))
        weights = learner.weights
        kept, upload = self.gather.outgoing(env, state and state.kept, weights)
        return Previous(weights, kept), upload
