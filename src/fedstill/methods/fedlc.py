"""Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration.
ICML 2022.
"""

from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Env, methods
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.calibration import calibrated_cross_entropy, margins
from fedstill.parts.gather import Update


@methods.register("fedlc")
@dataclass(frozen=True)
class FedLC(Averaging):
    """FedAvg whose clients calibrate their logits by how often they see each class.

    Cross-entropy of logits − τ n_c^(−1/4), n_c the client's samples of class c; τ = 0 is FedAvg.
    """

    paper = "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022"
    server_sums = "samples"
    tau: float = setting(1.0, ge=0, doc="strength of the calibration (τ)")
    others_only: bool = setting(False, doc="the sum runs over the other classes alone, as printed: no lower bound")

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w on the calibrated loss."""
        learner = self.learner(env, env.module(down.weights))
        margin = margins(data.counts(env.classes), self.tau).to(env.device)
        for x, y in self.batches(env, data, learner.module):
            learner.step(calibrated_cross_entropy(learner(x), y, margin, self.others_only))
        return self.gather.outgoing(env, state, learner.weights)
