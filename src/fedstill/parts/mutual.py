"""Mutual learning: two models of one client see the same batch, and each learns from labels and from the other."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedstill.parts.losses import cross_entropy, kl


def mutual(own: Tensor, other: Tensor, y: Tensor, share: float) -> Tensor:
    """share · CE(own, y) + (1 − share) · KL(other ‖ own) of logits; the other's are constants.

    At share 1 the other model has no say, and none of its numbers enters the loss.
    """
    loss = cross_entropy(own, y)
    return loss if share == 1 else share * loss + (1 - share) * kl(other.detach(), own)


def adaptive_losses(
    features: Sequence[Tensor], logits: Sequence[Tensor], y: Tensor, bridge: nn.Module, distil: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """FedKD's losses of mentor, mentee and W_h (`bridge`): the surer both are of the labels, the more they exchange.

    L = CE + distil (KL(other ‖ own) + MSE(features)) / (CE_mentor + CE_mentee); the other model and the divisor are
    constants. Of `features` and `logits` the mentor's come first. distil = 0: cross-entropy alone, nothing for W_h.
    """
    task = [cross_entropy(own, y) for own in logits]
    if not distil:
        return task[0], task[1], task[0]
    weight = distil / (task[0] + task[1]).detach().clamp_min(1e-6)
    there = bridge(features[1].detach())
    near_mentor = (features[0] - there.detach()).square().mean()
    near_mentee = (features[0].detach() - bridge(features[1])).square().mean()
    mentor = task[0] + weight * (kl(logits[1].detach(), logits[0]) + near_mentor)
    mentee = task[1] + weight * (kl(logits[0].detach(), logits[1]) + near_mentee)
    return mentor, mentee, weight * (features[0].detach() - there).square().mean()
