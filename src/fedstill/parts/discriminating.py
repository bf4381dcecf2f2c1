"""Methods whose clients send a discriminator that tells their own samples from others."""

from abc import ABC, abstractmethod

from torch import Tensor

from fedstill.core.method import Env
from fedstill.core.record import State


class Discriminating(ABC):
    """A method that can say what a client's discriminator, once sent, tells whoever holds it."""

    @abstractmethod
    def own_scores(self, env: Env, weights: State, discriminator: State, inputs: Tensor) -> Tensor:
        """For each input, how much the discriminator sent beside these weights takes it for the client's own."""
