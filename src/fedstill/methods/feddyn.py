"""Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization.
ICLR 2021.
"""

from dataclasses import dataclass

from fedstill.core.method import Env, methods
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Broadcast
from fedstill.parts.dynamic import Bend, Dynamic, blank, turned
from fedstill.parts.gather import Update
from fedstill.parts.losses import cross_entropy


@methods.register("feddyn")
@dataclass(frozen=True)
class FedDyn(Dynamic):
    """Every client's loss is corrected, round by round, so that all local optima become the global one.

    Algorithm 1: min L_k(θ) − ⟨∇L_k(θ_k), θ⟩ + α/2 ‖θ − θ_t‖² on the clients, θ = mean − h/α on the server.
    """

    paper = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    made_for = ("labels differ much from client to client", "few clients are active in a round")

    def init_client(self, env: Env) -> Bend:
        """∇L_k = 0."""
        return Bend(blank(env), None)

    def client(self, env: Env, state: Bend, down: Broadcast, data: Samples) -> tuple[Bend, Update]:
        """Steps along ∇L_k + α (θ − θ_t − d_k); then d_k ← d_k − (θ_k − θ_t)."""
        learner = self.learner(env, env.module(down.weights))
        anchor = self.anchor(env, learner, state)
        for x, y in self.batches(env, data, learner.module):
            self.bent_step(learner, anchor, cross_entropy(learner(x), y))
        weights = learner.weights
        kept, upload = self.gather.outgoing(env, state.kept, weights)
        return Bend(turned(state, weights, down.weights), kept), upload
