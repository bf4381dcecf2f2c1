"""Knowledge by class: what clients say of each class they have, and the mean of it.

FedProto, FedTGP, FedGH and FedHKD share class means of features; FedHe and FedDistill+ class means of logits. Networks
may have feature vectors of different lengths: they are compared at the shortest, by averaging neighbours.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

from fedstill.core.classifier import Classifier
from fedstill.core.kind import Kind
from fedstill.core.method import Env
from fedstill.core.record import Carries, State, carries, record
from fedstill.models.conditional import feature_width
from fedstill.parts.learner import weights_of


@record
class Prototypes:
    """What leaves a client: the mean feature vector of each class (zeros where it has none), and which it has."""

    means: Tensor = carries(Carries.PROTOTYPES)
    seen: Tensor = carries(Carries.PRESENCE)


@record
class GlobalPrototypes:
    """What goes down: a prototype for each class, and the classes that have one."""

    means: Tensor
    known: Tensor


def by_class(
    before: Tensor, known: Tensor, knowledge: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Per class, the weighted mean of what clients say, and the classes it is known of.

    `knowledge`: clients' classes × width; `weights`: how much each class of a client counts (0: it does not have it). A
    class that nobody has keeps what was known of it.

        >>> before, known = torch.tensor([[9.0], [9.0]]), torch.tensor([False, True])
        >>> mean, known = by_class(before, known, [torch.ones(2, 1), 4 * torch.ones(2, 1)], [torch.tensor([1, 0])] * 2)
        >>> mean.tolist(), known.tolist()
        ([[2.5], [9.0]], [True, True])
    """
    shares = torch.stack(list(weights)).double()
    total = torch.einsum("kc,kcd->cd", shares, torch.stack(list(knowledge)).double())
    whole = shares.sum(0)
    means = (total / whole.where(whole > 0, 1.0).unsqueeze(1)).to(before.dtype)
    return torch.where(whole.unsqueeze(1) > 0, means, before), known | (whole > 0)


@lru_cache(maxsize=16)
def _narrowest(build: Callable[[int | None, int | None], Classifier], clients: int, kind: Kind) -> int:
    return min(feature_width(build(k, None), kind) for k in (None, *range(clients)))


def common_width(env: Env) -> int:
    """The length of the shortest feature vector of all parties' networks."""
    return _narrowest(env.build, env.clients, env.kind)


def shortened(features: Tensor, width: int) -> Tensor:
    """Feature vectors (batch × own length) brought to `width` by averaging neighbours; nothing where they fit."""
    return features if features.shape[-1] == width else adaptive_avg_pool1d(features, width)


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature vector of each class (zeros where there is none), and how many samples it has.

    >>> means, counts = class_means(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 2]), 3)
    >>> means.flatten().tolist(), counts.tolist()
    ([2.0, 0.0, 7.0], [2, 0, 1])
    """
    counts = torch.bincount(y, minlength=classes)
    total = features.new_zeros(classes, features.shape[1], dtype=torch.float64).index_add_(0, y, features.double())
    return (total / counts.clamp_min(1).unsqueeze(1)).to(features.dtype), counts


def prototype_gap(features: Tensor, y: Tensor, means: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance of features from their classes' prototypes; samples of unknown classes count as 0."""
    apart = (features - means[y]).square().mean(-1) * known[y]
    return apart.mean()


def no_prototypes(classes: int, width: int) -> GlobalPrototypes:
    """Nothing is known of any class."""
    return GlobalPrototypes(torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool))


def nearest_prototype(module: Any, prototypes: GlobalPrototypes) -> State | None:
    """The module's weights with a head that predicts the nearest known prototype; None where its head cannot.

    −‖f − c‖² grows with c·f − ‖c‖²/2, so a single linear layer says which of all c is nearest. Where vectors are
    shortened first, that is linear too.
    """
    head = module.head
    if not isinstance(head, nn.Linear) or head.bias is None:
        return None
    width = prototypes.means.shape[1]
    shorten = shortened(torch.eye(head.in_features), width)  # length × width
    far = -1e6  # a class without prototype is not predicted
    with torch.no_grad():
        head.weight.copy_(prototypes.means @ shorten.T)
        head.bias.copy_(torch.where(prototypes.known, -prototypes.means.square().sum(1) / 2, far))
    return weights_of(module)
