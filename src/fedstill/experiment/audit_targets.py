"""What an upload gives an attacker to score samples by: weights, public logits, prototypes, generator, discriminator.

A reader takes what one client sent and gives a function that scores samples, the higher the likelier a member; None
where the upload carries nothing of its kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from fedstill.core.method import Env
from fedstill.core.record import Carries
from fedstill.core.turn import AnyMethod, method_state
from fedstill.core.value import by_field
from fedstill.data.samples import Samples
from fedstill.experiment.examine import sent_model
from fedstill.experiment.inference import Scores, losses, odds, surrogate
from fedstill.parts.class_knowledge import shortened
from fedstill.parts.conditional_generator import Imagining
from fedstill.parts.discriminating import Discriminating

GENERATED = 400
"""Samples that are made to look whether one is near a member."""


@dataclass(frozen=True)
class ObservedTurn:
    """One client's turn in the round: what came down, what went up, and what stayed."""

    method: AnyMethod
    env: Env
    down: Any
    upload: Any
    state: Any


Scorer = Callable[[Samples], Scores]
Reader = Callable[[ObservedTurn], Scorer | None]


def carried_by(upload: Any, what: Carries) -> list[Any]:
    """All that an upload holds in fields that carry this."""
    return [by_field(upload)[f.name] for f in fields(upload) if f.metadata["carries"] is what]


def by_odds(env: Env, module: nn.Module) -> Scorer:
    """The odds of the true class, sample by sample (Yeom et al., CSF 2018)."""
    module = module.to(env.device)
    return lambda samples: odds(losses(module, samples.inputs().to(env.device), samples.y.to(env.device)).cpu())


def by_weights(observed: ObservedTurn) -> Scorer | None:
    """The loss of the model whose weights were sent; a head alone is no model."""
    module = sent_model(observed.env, observed.upload, observed.env.client)
    return None if module is None else by_odds(observed.env, module)


def by_logits(observed: ObservedTurn) -> Scorer | None:
    """The loss of a model that was brought to the public logits; None where they are of other classes."""
    env = observed.env
    logits, rows = carried_by(observed.upload, Carries.LOGITS), carried_by(observed.upload, Carries.ROWS)
    if not logits or not rows or env.public_classes is not None:
        return None
    module = env.module(env.initial(env.client), env.client)
    inputs = env.public.inputs(rows[0]).to(env.device)
    return by_odds(env, surrogate(module, inputs, logits[0].to(env.device), env.stream("audit logits")))


def by_prototypes(observed: ObservedTurn) -> Scorer | None:
    """How near a sample's features are to its class's prototype, for an attacker who has the client's network too."""
    env, prototypes = observed.env, carried_by(observed.upload, Carries.PROTOTYPES)
    own = observed.method.own(env, method_state(observed.state))
    if not prototypes or own is None:
        return None
    module, means = env.module(own, env.client).eval(), prototypes[0].to(env.device)

    def score(samples: Samples) -> Scores:
        with torch.no_grad():
            features = shortened(module.features(samples.inputs().to(env.device)), means.shape[1])
        distance = (features - means[samples.y.to(env.device)]).norm(dim=1)
        nearness: Scores = -distance.cpu().double().numpy()
        return nearness

    return score


def by_generator(observed: ObservedTurn) -> Scorer | None:
    """How near a sample is to the nearest of those that the client's generator makes (Hilprecht et al., PETS 2019).

    None where it makes feature vectors, or what models embed, and no samples.
    """
    generators = carried_by(observed.upload, Carries.GENERATOR)
    if not generators or not isinstance(observed.method, Imagining):
        return None
    imagined = observed.method.samples(observed.env, generators[0], GENERATED)
    if imagined.shape[1:] != observed.env.shape:
        return None

    def score(samples: Samples) -> Scores:
        inputs = samples.inputs().to(observed.env.device).flatten(1)
        nearness: Scores = -torch.cdist(inputs, imagined.flatten(1)).min(1).values.cpu().double().numpy()
        return nearness

    return score


def by_discriminator(observed: ObservedTurn) -> Scorer | None:
    """How much the client's discriminator takes a sample for its own (Hayes et al., LOGAN, PETS 2019)."""
    discriminators, method, env = carried_by(observed.upload, Carries.DISCRIMINATOR), observed.method, observed.env
    if not discriminators or not isinstance(method, Discriminating):
        return None
    weights = carried_by(observed.upload, Carries.WEIGHTS)[0]

    def score(samples: Samples) -> Scores:
        opinion = method.own_scores(env, weights, discriminators[0], samples.inputs().to(env.device))
        scores: Scores = opinion.cpu().double().numpy()
        return scores

    return score


READERS: tuple[tuple[Carries, str, Reader], ...] = (
    (Carries.WEIGHTS, "loss threshold", by_weights),
    (Carries.LOGITS, "loss threshold", by_logits),
    (Carries.PROTOTYPES, "distance to the prototype", by_prototypes),
    (Carries.GENERATOR, "distance to the nearest made", by_generator),
    (Carries.DISCRIMINATOR, "its own score", by_discriminator),
)
"""What is attacked, by which score, and how the score comes of an upload."""
