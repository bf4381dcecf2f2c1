"""DaFKD's local losses: classifier and domain discriminator learn together from real and generated samples."""

import torch
from torch import Tensor

from fedstill.methods.dafkd.domain import Duel, adversarial, gradient_penalty
from fedstill.models.classifier import embedded
from fedstill.parts.learner import Learner
from fedstill.parts.losses import cross_entropy


def joint_loss(duel: Duel, x: Tensor, y: Tensor, imagined: Tensor) -> Tensor:
    """(9) L_J = L_adv + L_CE; real and generated samples pass the trunk together, generated features pass none."""
    if duel.inner:
        logits, real = duel(x)
        return cross_entropy(logits, y) + adversarial(real, duel.of_generated(imagined)[1])
    logits, scores = duel(torch.cat([embedded(duel.classifier, x), imagined]))
    return cross_entropy(logits[: len(x)], y) + adversarial(scores[: len(x)], scores[len(x) :])


def authors_loss(
    duel: Duel, x: Tensor, y: Tensor, imagined: Tensor, stream: torch.Generator, rests: bool
) -> Tensor:  # fmt: skip
    """(9) as the authors' code has it: L_adv is the sum of two means, with a penalty; `rests`: L_CE alone."""
    x = embedded(duel.classifier, x)
    logits, scores = duel(torch.cat([x, imagined]))
    loss = cross_entropy(logits[: len(x)], y)
    if rests:
        return loss
    rivalry = adversarial(scores[: len(x)], scores[len(x) :])
    return loss + 2 * rivalry + 0.3 * gradient_penalty(duel, x, imagined, stream)


def separate_losses(pair: Learner, duel: Duel, x: Tensor, y: Tensor, imagined: Tensor) -> tuple[Tensor, Tensor]:
    """(9) in two, for protected samples: what real ones have a part in, and the generated half of L_adv."""
    with pair.watched():
        logits, real = pair.module(x)
    generated, nobody = duel.of_generated(imagined)[1], x.new_empty(0)
    private = cross_entropy(logits, y) + adversarial(real, nobody) / 2
    return private, adversarial(nobody, generated) / 2
