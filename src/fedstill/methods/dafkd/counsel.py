"""Counsel: how DaFKD's server learns what each client says of a sample, and how far to believe it.

Either the discriminator comes along and the server asks it, or it stays with the client, who asks it and sends its
soft predictions weighted by the answers (the discussion of 3.3). Equation numbers are the paper's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from fedstill.core.method import Env
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.rng import seeded
from fedstill.core.value import setting
from fedstill.methods.dafkd.domain import Duel, by_class, correlation_factors, veil, weighted
from fedstill.models.conditional import EmbeddedFeatures, feature_width
from fedstill.parts.conditional_generator import Gallery, Imagining
from fedstill.parts.discriminating import Discriminating
from fedstill.parts.distil import Distillation
from fedstill.parts.learner import weights_of

AUTHORS = {
    "local_steps": None, "generator": "dcgan", "channels": 64, "conditional": False, "stable": True,
    "samples_from": "previous", "distill_samples": 1280, "distill_epochs": 40, "temperature": 20.0, "warm_up": 1,
    "distill_optimizer": "adam", "distill_lr": 1e-4,
}  # fmt: skip
"""What `profile = "authors"` means for fields left at their defaults."""


@record
class Contribution:
    """What leaves a client (line 26): the shared trunk travels once, inside the weights."""

    weights: State = carries(Carries.WEIGHTS)
    generator: State = carries(Carries.GENERATOR)
    discriminator: State = carries(Carries.DISCRIMINATOR)


@record
class VeiledContribution:
    """What leaves a client whose discriminator stays: α_k·p_k and α_k on the samples everybody makes alike."""

    weights: State = carries(Carries.WEIGHTS)
    generator: State = carries(Carries.GENERATOR)
    predictions: Tensor = carries(Carries.PREDICTIONS)
    importance: Tensor = carries(Carries.PREDICTIONS)


@dataclass(frozen=True)
class Counsel(Imagining, Distillation, Discriminating):
    """The settings that decide who is asked and how, and both halves of the asking."""

    other_generators = ("features",)
    distill_samples: int = setting(1600, ge=1, doc="generated samples in a round (D̂)")
    sharing: bool = setting(True, doc="classifier and discriminator share one trunk (3.4)")
    correlation: bool = setting(True, doc="false: every client counts the same, α̂ = 1/K_t")
    upload: Literal["discriminator", "predictions"] = setting(
        "discriminator", doc="predictions: the discriminator stays; weighted soft predictions leave instead"
    )
    samples_from: Literal["aggregated", "previous"] = setting(
        "aggregated", doc="distil samples of the new generator, or of the broadcast one (upload = predictions: always)"
    )
    profile: Literal["paper", "authors"] = setting("paper", doc="authors: as their public code, see the method page")

    @property
    def theirs(self) -> bool:
        """Is this the authors' form?"""
        return self.profile == "authors"

    @property
    def inner(self) -> bool:
        """Does the generator make feature vectors instead of samples (appendix A)?"""
        return self.generator == "features"

    def make_generator(self, env: Env, weights: State | None = None) -> nn.Module:
        """g with these weights, or with those it starts from."""
        if not self.inner:
            return super().make_generator(env, weights)
        width = feature_width(env.module(), env.kind)
        with seeded(env.at(0).key("generator")):
            made = EmbeddedFeatures(width, env.classes, self.noise)
        made.load_state_dict(weights or made.state_dict())
        return made.to(env.device)

    def exhibit(self, env: Env, gallery: Gallery, weights: State) -> Gallery:
        """Feature vectors are no pictures: nothing is shown of them."""
        return gallery if self.inner else super().exhibit(env, gallery, weights)

    def duel(self, env: Env, weights: State, discriminator: State) -> Duel:
        """Classifier and discriminator with these weights, on one trunk or two; the initial θ^d for an empty one."""
        module, key = env.module(weights), env.at(0).key("discriminator")
        with seeded(key):
            trunk = None if self.sharing else env.build(None, key)
            made = Duel(module, trunk, feature_width(module, env.kind), self.inner)
        return made.holding(discriminator).to(env.device)

    def own_scores(self, env: Env, weights: State, discriminator: State, inputs: Tensor) -> Tensor:
        """The discriminator's logits, as an attacker who has the upload gets them."""
        with torch.no_grad():
            scores: Tensor = self.duel(env, weights, discriminator).eval()(inputs)[1]
        return scores

    def voice(self, duel: Duel, images: Tensor) -> tuple[Tensor, Tensor]:
        """What a client says of samples: p_k (authors: logits), and log α_k, how far it is to be believed."""
        predictions, log_importance = duel.voice(images, None if self.theirs else self.temperature)
        return predictions, log_importance if self.correlation else torch.zeros_like(log_importance)

    def outgoing(self, env: Env, duel: Duel, generator: State, broadcast: State) -> Any:
        """The upload; without the discriminator, its opinion of the broadcast generator's samples."""
        weights = weights_of(duel.classifier)
        if self.upload == "discriminator":
            return Contribution(weights, generator, duel.discriminator)
        predictions, importance = veil(*self.voice(duel, self.samples(env, broadcast, self.distill_samples)))
        return VeiledContribution(weights, generator, predictions.cpu(), importance.cpu())

    def ensemble(self, env: Env, uploads: Sequence[Any], images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The targets Σ_k α̂_{k,i} p_k(x_i) of (8); α̂ by client and class; how many samples of each class there are."""
        if self.upload == "predictions":
            importance = torch.stack([u.importance for u in uploads]).to(env.device)
            predictions = torch.stack([u.predictions for u in uploads]).to(env.device) / importance.unsqueeze(-1)
            factors = importance / importance.sum(0)
        else:
            voices = [self.voice(self.duel(env, u.weights, u.discriminator), images) for u in uploads]
            predictions, log_importance = (torch.stack(both) for both in zip(*voices, strict=True))
            factors = correlation_factors(log_importance)
        targets = weighted(predictions, factors)
        if self.theirs:  # logits were weighed, not probabilities
            targets = softmax(targets / self.temperature, -1)
        return targets, *by_class(factors, predictions)

    def uploads(self) -> type:
        """The record that leaves a client."""
        return Contribution if self.upload == "discriminator" else VeiledContribution

    def template(self, env: Env) -> Any:
        """Weights, a generator, and a discriminator or its opinions, of the right form."""
        weights, generator = env.form(), weights_of(self.make_generator(env))
        if self.upload == "discriminator":
            return Contribution(weights, generator, self.duel(env, weights, {}).discriminator)
        count = self.distill_samples
        return VeiledContribution(weights, generator, torch.zeros(count, env.classes), torch.zeros(count))

    def objection(self, env: Env, upload: Any) -> str | None:
        """An importance is a probability."""
        if not isinstance(upload, VeiledContribution):
            return None
        sound = bool(((upload.importance > 0) & (upload.importance <= 1)).all())
        return None if sound else "importance: must be > 0 and ≤ 1"
