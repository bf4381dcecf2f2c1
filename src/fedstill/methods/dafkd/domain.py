"""DaFKD's domain discriminator: how likely a sample is to be of a client's own domain.

Equation numbers are those of Wang et al., DaFKD, CVPR 2023. A score s is a logit: f(x) = sigmoid(s(x)).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, one_hot, softmax

from fedstill.core.classifier import Classifier
from fedstill.core.facts import Truth, derives
from fedstill.core.record import State
from fedstill.parts.learner import CHUNK, weights_of

LEAST = 1e-30
"""The least importance a client uploads: the sum over clients must not vanish."""


class Duel(nn.Module):
    """A client's classifier and its domain discriminator: two heads on one trunk (3.4), or a trunk each (final).

    The discriminator's head is one linear layer on feature vectors; `trunk` is a classifier whose features it uses
    instead of the shared ones. `inner`: generated samples are feature vectors, which heads alone see (appendix A).
    """

    def __init__(self, classifier: Classifier, trunk: Classifier | None, width: int, inner: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.classifier = classifier
        self.trunk = trunk
        self.head = nn.Linear(width, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (batch, classes) and scores (batch,)."""
        features = self.classifier.features(images)
        own = features if self.trunk is None else self.trunk.features(images)
        return self.classifier.head(features), self.head(own).squeeze(-1)

    def of_generated(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and scores of generated samples."""
        if not self.inner:
            logits, scores = self(samples)
            return logits, scores
        return self.classifier.head(samples), self.head(samples).squeeze(-1)

    @property
    def discriminator(self) -> State:
        """θ^d: the head, and the trunk if it is its own (without the classifying head nobody uses)."""
        idle = [] if self.trunk is None else [id(p) for p in self.trunk.head.parameters()]
        unused = {name for name, p in self.named_parameters() if id(p) in idle}
        every = weights_of(self)
        return {n: t for n, t in every.items() if not n.startswith("classifier.") and n not in unused}

    def holding(self, discriminator: State) -> "Duel":
        """This module with θ^d replaced; a θ^d that is not finite is not taken."""
        if all(bool(tensor.isfinite().all()) for tensor in discriminator.values()):
            self.load_state_dict(dict(discriminator), strict=False)
        return self

    def voice(self, images: Tensor, temperature: float | None) -> tuple[Tensor, Tensor]:
        """Of generated samples: soft predictions p_k (temperature None: logits), and log α_k = log f (α_k of 3.3)."""
        self.eval()
        with torch.no_grad():
            parts = [self.of_generated(part) for part in torch.split(images, CHUNK)]
        logits, scores = (torch.cat(both) for both in zip(*parts, strict=True))
        return logits if temperature is None else softmax(logits / temperature, -1), logsigmoid(scores)


def adversarial(real: Tensor, generated: Tensor) -> Tensor:
    """(2): −[Σ log f(x) + Σ log(1 − f(x̂))] / (D + D̂), one mean over real and generated scores together.

    >>> adversarial(torch.zeros(3), torch.zeros(1)).item()  # f = ½ everywhere: log 2
    0.6931471824645996
    """
    return -torch.cat([logsigmoid(real), logsigmoid(-generated)]).mean()


def deceive(generated: Tensor, stable: bool) -> Tensor:
    """(3) as a loss: E log(1 − f(g(z))), which saturates where f is near 0; stable: −E log f(g(z)), which does not."""
    return -logsigmoid(generated).mean() if stable else logsigmoid(-generated).mean()


def gradient_penalty(duel: Duel, real: Tensor, generated: Tensor, stream: torch.Generator) -> Tensor:
    """mean (‖∇_x f‖ − 1)² between real and generated images, the norm over channels at each pixel (authors' code)."""
    mix = torch.rand(len(real), *[1] * (real.ndim - 1), generator=stream).to(real.device)
    between = (mix * real + (1 - mix) * generated).requires_grad_()
    (slope,) = torch.autograd.grad(torch.sigmoid(duel(between)[1]).sum(), between, create_graph=True)
    return ((slope.square().sum(1).clamp(min=1e-12).sqrt() - 1) ** 2).mean()


def veil(predictions: Tensor, log_importance: Tensor) -> tuple[Tensor, Tensor]:
    """What a client sends instead of its discriminator: α_k·p_k and α_k, sample by sample."""
    importance = log_importance.exp().clamp(min=LEAST)
    return importance.unsqueeze(-1) * predictions, importance


def correlation_factors(log_importance: Tensor) -> Tensor:
    """(7) α̂_{k,i} = f_k(x_i) / Σ_k f_k(x_i), from log f (clients × samples): a softmax over clients."""
    return softmax(log_importance, 0)


def weighted(predictions: Tensor, factors: Tensor) -> Tensor:
    """Σ_k α̂_{k,i} p_k(x_i) of (8), from clients × samples × classes."""
    return (factors.unsqueeze(-1) * predictions).sum(0)


def by_class(factors: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of α̂ over the samples of each class, clients × classes (0 where there is none), and how many there are.

    A sample's class is what the clients say on average, each counting the same: α̂ has no part in its own yardstick.
    """
    member = one_hot(predictions.mean(0).argmax(-1), predictions.shape[-1]).to(factors.dtype)
    made = member.sum(0)
    return factors @ member / made.clamp(min=1), made.long()


def domain_correlation(
    weights: Mapping[str, Sequence[float]], made: Sequence[int], counts: NDArray[np.integer]
) -> float | None:
    """DaFKD: Pearson's correlation of α̂ with clients' label shares, over clients × classes of generated samples.

    `weights` holds a client's mean α̂ for each class, `made` how many samples of each class were generated (classes
    without any are left out), `counts` everybody's training samples, clients × classes. None where nothing varies.

        >>> round(domain_correlation({"0": [0.8, 0.3], "1": [0.2, 0.7]}, [5, 5], np.array([[9, 1], [2, 8]])), 5)
        0.97073
    """
    clients = [int(k) for k in weights]
    chosen = np.array(made) > 0
    importance = np.array([weights[str(k)] for k in clients], float)[:, chosen].ravel()
    held = counts[clients].astype(float)
    shares = (held / np.maximum(held.sum(1, keepdims=True), 1))[:, chosen].ravel()
    if len(importance) < 2 or np.ptp(importance) < 1e-12 or np.ptp(shares) < 1e-12:
        return None
    return float(np.corrcoef(importance, shares)[0, 1])


@derives("domain_weights", "made")
def _correlated(facts: Mapping[str, Any], truth: Truth) -> Mapping[str, Any]:
    """How well the discriminators' weights follow the labels that clients have."""
    if truth.counts is None or not facts["domain_weights"]:
        return {}
    return {"domain_correlation": domain_correlation(facts["domain_weights"], facts["made"], truth.counts)}
