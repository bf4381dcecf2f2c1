"""Imagining: generators of images that are told a label, as DaFKD and FedFTG use them, and what they made so far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedstill.core.errors import unknown
from fedstill.core.method import Env
from fedstill.core.record import State
from fedstill.core.rng import seeded
from fedstill.core.value import Value, setting
from fedstill.models.conditional import build_conditional
from fedstill.models.registry import generators
from fedstill.parts.learner import Learner, frozen, optimizer_of

Gallery = Mapping[int, Tensor]
"""Generated samples (images as bytes), by the number of the round after which they were made."""


@dataclass(frozen=True)
class Imagining(Value):
    """A generator's settings, and the generator they describe."""

    noise: int = setting(100, ge=1, doc="length of z")
    generator: str = setting(
        "embedding",
        doc="embedding (DaFKD 4.1), light (any data), an image generator (dafl, dcgan); features (DaFKD alone)",
    )
    channels: int | None = setting(None, ge=1, doc="width of an image generator")
    conditional: bool = setting(True, doc="the generator is told a label")
    generator_lr: float = setting(1e-3, gt=0, doc="Adam's rate for the generator")
    other_generators: ClassVar[tuple[str, ...]] = ()
    """Generators that this method alone can use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ["embedding", *self.other_generators, *generators]
        if self.generator not in known:
            raise unknown("generator", self.generator, known)

    def make_generator(self, env: Env, weights: State | None = None) -> nn.Module:
        """g with these weights, or with those it starts from."""
        labels = env.classes if self.conditional else 0
        with seeded(env.at(0).key("generator")):
            made = build_conditional(self.generator, env.kind, labels, self.noise, self.channels)
        made.load_state_dict(weights or made.state_dict())
        return made.to(env.device)

    def generator_learner(self, env: Env, weights: State, weight_decay: float = 0.0) -> Learner:
        """g in training."""
        made = self.make_generator(env, weights).train()
        return Learner(made, optimizer_of("adam", made, self.generator_lr, weight_decay=weight_decay))

    def draw(self, env: Env, count: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """z ~ N(0, I), and labels, all equally likely."""
        z = torch.randn(count, self.noise, generator=stream)
        return z.to(env.device), torch.randint(env.classes, (count,), generator=stream).to(env.device)

    def samples(self, env: Env, weights: State, count: int) -> Tensor:
        """The same images for every party of a round: they come from the shared seed."""
        noise = self.draw(env, count, env.at(env.round).stream("samples"))
        with torch.no_grad():
            images: Tensor = frozen(self.make_generator(env, weights))(*noise)
        return images

    def exhibit(self, env: Env, gallery: Gallery, weights: State) -> Gallery:
        """The gallery with an image for each class, from the same noise in every round."""
        z, _ = self.draw(env, env.classes, env.at(0).stream("gallery"))
        with torch.no_grad():
            images = frozen(self.make_generator(env, weights))(z, torch.arange(env.classes, device=env.device))
        return hang(gallery, env.round + 1, env.kind.kept(images).cpu())


def hang(gallery: Gallery, number: int, images: Tensor) -> Gallery:
    """Keep the images of the first, second, fourth, eighth … round, and the latest ones.

    >>> gallery = {}
    >>> for number in range(1, 8):
    ...     gallery = hang(gallery, number, torch.zeros(1))
    >>> list(gallery)
    [1, 2, 4, 7]
    """
    kept = {n: shown for n, shown in gallery.items() if n & (n - 1) == 0}
    return {**kept, number: images}
