"""Mutual learning: two models of one client see the same batch, and each learns from labels and from the other."""

from torch import Tensor

from fedstill.parts.losses import cross_entropy, kl


def mutual(own: Tensor, other: Tensor, y: Tensor, share: float, temperature: float = 1.0) -> Tensor:
    """share · CE(own, y) + (1 − share) · KL(other ‖ own) of logits; the other's are constants.

    At share 1 the other model has no say, and none of its numbers enters the loss.
    """
    loss = cross_entropy(own, y)
    return loss if share == 1 else share * loss + (1 - share) * kl(other.detach(), own, temperature)
