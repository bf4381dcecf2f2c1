"""Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-objective Optimization. IEEE Transactions on Network
Science and Engineering, 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.methods.fedavg import FedAvg
from fedstill.parts.averaging import Global
from fedstill.parts.gather import stepped
from fedstill.parts.learner import parameter_names


@record
class Pareto(Global):
    """The server's state: w, what the gather remembers, and λ of the clients that answered last."""

    shares: Mapping[int, float]


@methods.register("fedmgda-plus")
@dataclass(frozen=True)
class FedMGDAPlus(FedAvg):
    """A step that is good for every client, as far as there is one.

    FedAvg's clients; w ← w − η Σ λ_k g_k, g_k of length 1, λ near n_k/Σn such that the sum is shortest.
    """

    paper = "Hu et al., Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022"
    server_sums = None  # type: ignore[assignment] # λ looks at every client's own step
    epsilon: float = setting(0.1, ge=0, le=1, doc="how far λ may be from the clients' shares of samples (ε)")
    server_lr: float = setting(1.0, gt=0, doc="step size of the server (η)")

    def init_server(self, env: Env) -> Pareto:
        """w⁰."""
        first = super().init_server(env)
        return Pareto(first.weights, first.memory, {})

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Any]]) -> Pareto:
        """The common direction of descent, η long or shorter."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Pareto(server.weights, memory, {})
        trained, towards = parameter_names(env), [r.upload.weights for r in kept]
        flat = np.stack([flattened(server.weights, w, trained) for w in towards])
        lengths = np.linalg.norm(flat, axis=1)
        unit = flat / np.where(lengths > 0, lengths, 1.0)[:, None]
        counts = [r.samples for r in kept]
        shares = fairest(unit @ unit.T, np.array(counts) / sum(counts), self.epsilon)
        pulls = [self.server_lr * s / far if far else 0.0 for s, far in zip(shares.tolist(), lengths, strict=True)]
        by_client = dict(zip([r.client for r in kept], shares.tolist(), strict=True))
        return Pareto(stepped(server.weights, towards, pulls, trained, counts), memory, by_client)

    def facts(self, env: Env, server: Global) -> Mapping[str, Any]:
        """`shares`: λ of every client that answered."""
        shares = server.shares if isinstance(server, Pareto) else {}
        return {**super().facts(env, server), "shares": {str(k): share for k, share in shares.items()}}


def flattened(weights: State, own: State, names: Sequence[str]) -> NDArray[np.float64]:
    """w − w_k as one long vector."""
    return np.concatenate([(weights[n].double() - own[n].double()).flatten().numpy() for n in names])


def fairest(products: NDArray[np.float64], usual: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """argmin ‖Σ λ_k g_k‖² over λ ≥ 0, Σλ = 1, |λ_k − usual_k| ≤ ε, from the products g_i·g_j: a small convex problem.

    >>> fairest(np.diag([1.0, 3.0]), np.array([0.5, 0.5]), 1.0).round(3).tolist()  # λ² + 3(1 − λ)² is least at ¾
    [0.75, 0.25]
    >>> fairest(np.diag([1.0, 3.0]), np.array([0.5, 0.5]), 0.1).round(3).tolist()  # no further than ε
    [0.6, 0.4]
    """
    bounds = list(zip((usual - epsilon).clip(0), (usual + epsilon).clip(max=1), strict=True))
    solution = minimize(
        lambda share: float(share @ products @ share),
        usual,
        jac=lambda share: 2 * products @ share,
        bounds=bounds,
        constraints={"type": "eq", "fun": lambda share: share.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    shares: NDArray[np.float64] = solution.x.clip(0)
    shares /= shares.sum()
    return shares
