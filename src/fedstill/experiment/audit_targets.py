"""What an upload gives an attacker to score samples by: weights, public logits, prototypes, generator, discriminator.

A reader takes what one client sent and gives a function that scores samples, the higher the likelier a member; None
where the upload carries nothing of its kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstill.core.method import Env
from fedstill.core.record import Carries
from fedstill.core.turn import AnyMethod, method_state
from fedstill.core.value import by_field
from fedstill.data.samples import Samples
from fedstill.experiment.inference import Scores, losses, odds, surrogate
from fedstill.methods.dafkd.counsel import Counsel
from fedstill.parts.class_knowledge import shortened
from fedstill.parts.conditional_generator import Imagining

GENERATED = 400
"""Samples that are made to look whether one is near a member."""


@dataclass(frozen=True)
class Sent:
    """One client's turn in the round: what came down, what went up, and what stayed."""

    method: AnyMethod
    env: Env
    down: Any
    upload: Any
    state: Any


Scorer = Callable[[Samples], Scores]
Reader = Callable[[Sent], Scorer | None]


def carried_by(upload: Any, what: Carries) -> list[Any]:
    """All that an upload holds in fields that carry this."""
    return [by_field(upload)[f.name] for f in fields(upload) if f.metadata["carries"] is what]


def by_odds(env: Env, module: nn.Module) -> Scorer:
    """The odds of the true class, sample by sample (Yeom et al., CSF 2018)."""
    module = module.to(env.device)
    return lambda samples: odds(losses(module, samples.inputs().to(env.device), samples.y.to(env.device)).cpu())


def by_weights(sent: Sent) -> Scorer | None:
    """The loss of the model whose weights were sent; a head alone is no model."""
    found = carried_by(sent.upload, Carries.WEIGHTS)
    whole = bool(found) and found[0].keys() == sent.env.form(sent.env.client).keys()
    return by_odds(sent.env, sent.env.module(found[0], sent.env.client)) if whole else None


def by_logits(sent: Sent) -> Scorer | None:
    """The loss of a model that was brought to the public logits; None where they are of other classes."""
    env = sent.env
    logits, rows = carried_by(sent.upload, Carries.LOGITS), carried_by(sent.upload, Carries.ROWS)
    if not logits or not rows or env.public_classes is not None:
        return None
    module = env.module(env.initial(env.client), env.client)
    inputs = env.public.inputs(rows[0]).to(env.device)
    return by_odds(env, surrogate(module, inputs, logits[0].to(env.device), env.stream("audit logits")))


def by_prototypes(sent: Sent) -> Scorer | None:
    """How near a sample's features are to its class's prototype, for an attacker who has the client's network too."""
    env, found = sent.env, carried_by(sent.upload, Carries.PROTOTYPES)
    own = sent.method.own(env, method_state(sent.state))
    if not found or own is None:
        return None
    module, means = env.module(own, env.client).eval(), found[0].to(env.device)

    def score(samples: Samples) -> Scores:
        with torch.no_grad():
            features = shortened(module.features(samples.inputs().to(env.device)), means.shape[1])
        distance = (features - means[samples.y.to(env.device)]).norm(dim=1)
        nearness: Scores = -distance.cpu().double().numpy()
        return nearness

    return score


def by_generator(sent: Sent) -> Scorer | None:
    """How near a sample is to the nearest of those that the client's generator makes (Hilprecht et al., PETS 2019)."""
    found = carried_by(sent.upload, Carries.GENERATOR)
    if not found or not isinstance(sent.method, Imagining):
        return None
    made = sent.method.samples(sent.env, found[0], GENERATED).flatten(1)

    def score(samples: Samples) -> Scores:
        inputs = samples.inputs().to(sent.env.device).flatten(1)
        if inputs.shape[1] != made.shape[1]:  # it makes what models embed, not samples
            return np.zeros(len(samples))
        nearness: Scores = -torch.cdist(inputs.float(), made.float()).min(1).values.cpu().double().numpy()
        return nearness

    return score


def by_discriminator(sent: Sent) -> Scorer | None:
    """How much the client's discriminator takes a sample for its own (Hayes et al., LOGAN, PETS 2019)."""
    found, method, env = carried_by(sent.upload, Carries.DISCRIMINATOR), sent.method, sent.env
    if not found or not isinstance(method, Counsel):
        return None
    duel = method.duel(env, carried_by(sent.upload, Carries.WEIGHTS)[0], found[0]).eval()

    def score(samples: Samples) -> Scores:
        with torch.no_grad():
            opinion: Scores = duel(samples.inputs().to(env.device))[1].cpu().double().numpy()
        return opinion

    return score


READERS: tuple[tuple[Carries, str, Reader], ...] = (
    (Carries.WEIGHTS, "loss threshold", by_weights),
    (Carries.LOGITS, "loss threshold", by_logits),
    (Carries.PROTOTYPES, "distance to the prototype", by_prototypes),
    (Carries.GENERATOR, "distance to the nearest made", by_generator),
    (Carries.DISCRIMINATOR, "its own score", by_discriminator),
)
"""What is attacked, by which score, and how the score comes of an upload."""
