"""Attacks: what malicious clients do to their own turn. They wrap it; the method cannot tell.

An attack on data changes what a client trains on and fits every method; one on logits or on weights changes that field
of the upload. Every draw comes from a stream of the attack's own, so the client's batches stay what they were.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env
from fedstill.core.record import Carries, State, carried, field_carrying, replaced
from fedstill.core.registry import Registry
from fedstill.core.turn import AnyMethod, Turn, Wrapper
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import lacking


@dataclass(frozen=True)
class Attack(Wrapper, ABC):
    """Base of all attacks: changes nothing."""

    def on(self, place: int) -> "Attack":
        """The attack of the place-th malicious client, where they differ."""
        return self

    def data(self, env: Env, data: Samples) -> Samples:
        """The samples that the malicious client `env.client` trains on, in place of its own `data`."""
        return data

    def upload(self, env: Env, upload: Any, down: Any) -> Any:
        """What it sends in place of the honest `upload`; `down` is what the server sent to it."""
        return upload

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn on the attack's data, with the attack's upload; the state it keeps is the honest one."""

        def attacked(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            state, upload = turn(env, state, down, self.data(env, data))
            return state, self.upload(env, upload, down)

        return attacked


attacks: Registry[Attack] = Registry("attack", Attack)


@dataclass(frozen=True)
class LogitAttack(Attack, ABC):
    """An attack on the logits of an upload, one row a sample (or a class)."""

    reads: ClassVar = (Carries.LOGITS, Carries.CLASS_LOGITS)

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs an upload of logits."""
        return lacking(upload, *self.reads)

    def upload(self, env: Env, upload: Any, down: Any) -> Any:
        """The upload with other logits."""
        return replaced(upload, self.forged(env.stream("attack"), carried(upload, *self.reads)), *self.reads)

    @abstractmethod
    def forged(self, stream: torch.Generator, logits: Tensor) -> Tensor:
        """The logits it sends instead."""


@attacks.register("logit-flip")
@dataclass(frozen=True)
class LogitFlip(LogitAttack):
    """FedTKD's Type-1: for a share of the samples, the largest logit trades places with another, drawn at random."""

    share: float = setting(0.5, ge=0, le=1, doc="share of the samples whose logits are flipped")

    def forged(self, stream: torch.Generator, logits: Tensor) -> Tensor:
        """The largest logit's place and the place it is swapped with differ always."""
        count, classes = logits.shape
        if classes < 2:
            return logits
        rows = torch.randperm(count, generator=stream)[: round(self.share * count)]
        top = logits[rows].argmax(-1)
        other = (top + torch.randint(1, classes, (len(rows),), generator=stream)) % classes
        out = logits.clone()
        out[rows, top], out[rows, other] = logits[rows, other], logits[rows, top]
        return out


@attacks.register("second-max")
@dataclass(frozen=True)
class SecondMax(LogitAttack):
    """FedTKD's Type-3: half of the other logits of every sample rise to just below the largest."""

    gap: float = setting(1e-5, ge=0, doc="how far below the largest logit they end")

    def forged(self, stream: torch.Generator, logits: Tensor) -> Tensor:
        """ceil((classes − 1)/2) positions become max − 1e-5, or the next smaller float where that is no change."""
        top, place = logits.max(-1, keepdim=True)
        lower = top - self.gap
        lower = torch.where(lower < top, lower, torch.nextafter(top, torch.full_like(top, -torch.inf)))
        order = torch.rand(logits.shape, generator=stream).scatter(-1, place, 2.0).argsort(-1)  # the largest comes last
        chosen = order[:, : math.ceil((logits.shape[-1] - 1) / 2)]
        return logits.scatter(-1, chosen, lower.expand_as(chosen))


@attacks.register("noisy-data")
@dataclass(frozen=True)
class NoisyData(Attack):
    """FedTKD's Type-2: noise on a share of the private samples, the same in all rounds; labels are kept."""

    share: tuple[float, ...] = setting(
        (0.75, 0.8, 0.85, 0.9, 0.95),
        doc="share of noisy samples, cycled over the attackers (here the paper's for Fashion-MNIST)",
    )
    std: float = setting(
        1.0, gt=0, doc="strength of the noise; 1 is the range of the data (images: from black to white)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.share or not all(0 <= s <= 1 for s in self.share):
            raise UsageError(f"share = {', '.join(map(str, self.share))}: must be shares from 0 to 1")

    def on(self, place: int) -> "NoisyData":
        """The place-th attacker's share alone."""
        return replace(self, share=(self.share[place % len(self.share)],))

    def data(self, env: Env, data: Samples) -> Samples:
        """The client's samples, that many of them noisy."""
        stream = env.at(0, env.client).stream("noisy data")
        rows = torch.randperm(len(data), generator=stream)[: round(self.share[0] * len(data))]
        return replace(data, x=data.kind.noised(data.x, rows, self.std, stream))


@attacks.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains on wrong labels: class c becomes class C − 1 − c."""

    def data(self, env: Env, data: Samples) -> Samples:
        """The client's samples, mislabelled."""
        return replace(data, y=env.classes - 1 - data.y)


@dataclass(frozen=True)
class WeightAttack(Attack, ABC):
    """An attack on uploaded weights, made from them and from the weights that came down.

    Counters and BatchNorm's variances stay as trained: no weights of a working network look like that. What else leaves
    stays as trained too (a control variate tells of gradients, and must fit what the client keeps), but for the change
    of the weights since the last upload, which is what it says.
    """

    @property
    def reads_steps(self) -> bool:
        """It forges the step."""
        return True

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs weights that travel both ways."""
        return no_weights(method, upload)

    def upload(self, env: Env, upload: Any, down: Any) -> Any:
        """The upload with other weights; where it tells their change since the last upload, that is moved as well."""
        trained, received = carried(upload, Carries.WEIGHTS), carried(down, Carries.WEIGHTS)
        stream = env.stream("attack")
        forged = {
            name: self.forged(stream, tensor, received[name]) if forgeable(name, tensor) else tensor
            for name, tensor in trained.items()
        }
        return sent_instead(upload, forged)

    @abstractmethod
    def forged(self, stream: torch.Generator, trained: Tensor, received: Tensor) -> Tensor:
        """What it sends instead of a trained tensor."""


def no_weights(method: AnyMethod, upload: type) -> str | None:
    """Why an attack on weights, made from those that came down, does not fit a method; None where it does."""
    if field_carrying(method.downloads(), Carries.WEIGHTS) is None:
        return "works on model weights; this method sends none down"
    return lacking(upload, Carries.WEIGHTS)


def forgeable(name: str, tensor: Tensor) -> bool:
    """May a tensor be forged? Not counters, nor BatchNorm's variances: a forged one would be seen at once."""
    return tensor.is_floating_point() and not name.endswith("running_var")


def sent_instead(upload: Any, forged: State) -> Any:
    """The upload with forged weights; where it tells their change since the last upload, that is moved as well."""
    change = carried(upload, Carries.CHANGE)
    if change is not None:
        trained = carried(upload, Carries.WEIGHTS)
        moved = {n: c + (forged[n].double() - trained[n].double()) for n, c in change.items()}
        upload = replaced(upload, moved, Carries.CHANGE)
    return replaced(upload, forged, Carries.WEIGHTS)


@attacks.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(WeightAttack):
    """Goes the other way: w_t − scale (w_k − w_t). At scale s, 1 in s + 1 such clients brings an average to a halt."""

    scale: float = setting(10.0, gt=0, doc="length of the step back, relative to the step forward")

    def forged(self, stream: torch.Generator, trained: Tensor, received: Tensor) -> Tensor:
        """The trained step, reversed and scaled."""
        return received - self.scale * (trained - received)


@attacks.register("scaled")
@dataclass(frozen=True)
class Scaled(WeightAttack):
    """Shouts: w_t + scale (w_k − w_t)."""

    scale: float = setting(10.0, gt=0, doc="factor on the trained step")

    def forged(self, stream: torch.Generator, trained: Tensor, received: Tensor) -> Tensor:
        """The trained step, scaled."""
        return received + self.scale * (trained - received)


@attacks.register("gaussian")
@dataclass(frozen=True)
class Gaussian(WeightAttack):
    """Sends noise for a trained step: w_t + std·ξ, ξ ~ N(0, I)."""

    std: float = setting(1.0, gt=0, doc="standard deviation of the noise")

    def forged(self, stream: torch.Generator, trained: Tensor, received: Tensor) -> Tensor:
        """The received weights, with noise."""
        return received + self.std * torch.randn(received.shape, generator=stream, dtype=received.dtype)
