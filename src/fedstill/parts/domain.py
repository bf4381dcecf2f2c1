"""DaFKD's domain discriminator: how likely a sample is to be of a client's own domain.

Equation numbers are those of Wang et al., DaFKD, CVPR 2023. A score s is a logit: f(x) = sigmoid(s(x)).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softmax

from fedstill.core.record import State
from fedstill.models.classifier import Shape
from fedstill.models.conditional import feature_width
from fedstill.parts.learner import weights_of


class Discriminator(nn.Module):
    """One linear layer on features: the classifier's (3.4, the shared trunk), or those of a trunk of its own (final)."""

    def __init__(self, classifier: nn.Module, shape: Shape, shared: bool) -> None:
        super().__init__()
        self.trunk = None if shared else classifier
        self.head = nn.Linear(feature_width(classifier, shape), 1)

    def forward(self, images: Tensor, features: Tensor | None) -> Tensor:
        """The scores (batch,); `features` are the classifier's, of no use to a trunk of its own."""
        if self.trunk is not None:
            features = self.trunk.features(images)  # type: ignore[operator]
        assert features is not None
        return self.head(features).squeeze(-1)  # type: ignore[no-any-return]

    @property
    def weights(self) -> State:
        """What makes the discriminator; a trunk of its own has a classifier's head, which is left out."""
        idle = set() if self.trunk is None else {id(p) for p in self.trunk.head.parameters()}  # type: ignore[union-attr]
        names = {name for name, p in self.named_parameters() if id(p) in idle}
        return {name: tensor for name, tensor in weights_of(self).items() if name not in names}

    def holding(self, weights: State) -> "Discriminator":
        """This module with these weights."""
        self.load_state_dict(dict(weights), strict=False)
        return self


def adversarial(real: Tensor, generated: Tensor) -> Tensor:
    """(2): −[Σ log f(x) + Σ log(1 − f(x̂))] / (D + D̂), one mean over real and generated scores together.

    >>> adversarial(torch.zeros(3), torch.zeros(1)).item()  # f = ½ everywhere: log 2
    0.6931471824645996
    """
    return -torch.cat([logsigmoid(real), logsigmoid(-generated)]).mean()


def deceive(generated: Tensor, stable: bool) -> Tensor:
    """(3) as a loss: E log(1 − f(g(z))), which saturates where f is near 0; stable: −E log f(g(z)), which does not."""
    return -logsigmoid(generated).mean() if stable else logsigmoid(-generated).mean()


def correlation_factors(log_importance: Tensor) -> Tensor:
    """(7) α̂_{k,i} = f_k(x_i) / Σ_k f_k(x_i), from log f (clients × samples), as a softmax over clients."""
    return softmax(log_importance, 0)


def gradient_penalty(scored: Tensor, images: Tensor) -> Tensor:
    """mean (‖∇_x f‖ − 1)², the norm over channels at every pixel, as in the authors' code."""
    (slope,) = torch.autograd.grad(torch.sigmoid(scored).sum(), images, create_graph=True)
    return ((slope.square().sum(1).clamp(min=1e-12).sqrt() - 1) ** 2).mean()


def by_class(factors: Tensor, classes_of: Tensor, classes: int) -> Tensor:
    """Mean of α̂ (clients × samples) over the samples of each class: clients × classes, NaN where there is none."""
    member = torch.nn.functional.one_hot(classes_of, classes).to(factors.dtype)
    return factors @ member / member.sum(0)
