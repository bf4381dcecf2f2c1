"""Dai, Zhang, Li, Liu, Yang, Han: Enhancing One-Shot Federated Learning through Data and Ensemble Co-Boosting.
ICLR 2024.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softmax

from fedstill.core.method import methods
from fedstill.core.value import setting
from fedstill.methods.dense import OneShotFederation
from fedstill.parts.losses import cross_entropy, kl
from fedstill.parts.one_shot import Ensemble


@methods.register("co-boosting")
@dataclass(frozen=True)
class CoBoosting(OneShotFederation):
    """One round; hard generated samples and the ensemble's weights improve each other, then the student.

    Samples count by their difficulty and are made harder still; the ensemble's weights follow from them.
    """

    paper = "Dai et al., Enhancing One-Shot Federated Learning through Data and Ensemble Co-Boosting, ICLR 2024"
    lambda_bn: float = setting(0.0, ge=0, doc="weight of the distance from BatchNorm's statistics")
    lambda_div: float = setting(1.0, ge=0, doc="weight of what the student does not know yet (β)")
    epsilon: float = setting(0.03, ge=0, doc="how far a sample is moved towards difficulty, in units of inputs (ε)")
    mu: float = setting(0.1, ge=0, doc="step of the members' weights, divided by their number (μ)")
    mu_decay: float = setting(0.99, gt=0, le=1, doc="factor on that step after every generation")

    def label_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(5) Each sample's cross-entropy times its difficulty 1 − p_y, which is a constant."""
        difficulty = 1 - softmax(logits.detach(), -1).gather(1, y.unsqueeze(1)).squeeze(1)
        return (difficulty * cross_entropy(logits, y, reduction="none")).mean()

    def challenge(self, ensemble: Tensor, student: Tensor) -> Tensor:
        """(6) The divergence on all samples."""
        return kl(ensemble, student)

    def hardened(self, inputs: Tensor, ensemble: Ensemble, stream: torch.Generator) -> Tensor:
        """(8) A step of ε along the sign of the gradient of uᵀ softmax(ensemble), u at random in [−1, 1]."""
        if not self.epsilon:
            return inputs
        moved = inputs.detach().requires_grad_()
        probabilities = softmax(ensemble(moved) / 4, -1)
        direction = (2 * torch.rand(probabilities.shape, generator=stream) - 1).to(probabilities)
        (slope,) = torch.autograd.grad((direction * probabilities).sum(), moved)
        return (inputs + self.epsilon * slope.sign()).detach()

    def reweighted(self, ensemble: Ensemble, batches: Iterator[tuple[Tensor, Tensor]], generation: int) -> Tensor:
        """(9, 10) Steps of μ against the sign of the cross-entropy's gradient; shares stay in [0, 1]."""
        shares, step = ensemble.shares, self.mu / len(ensemble.members) * self.mu_decay**generation
        for x, y in batches:
            with torch.no_grad():
                logits = torch.stack([member(x) for member in ensemble.members])
            free = shares.clone().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropy(torch.einsum("k,knc->nc", free, logits), y), free)
            shares = (shares - step * slope.sign()).clamp(0, 1)
        return shares if bool(shares.any()) else ensemble.shares
