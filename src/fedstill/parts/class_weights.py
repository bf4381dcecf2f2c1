"""Class weights: rare classes count as much as common ones in a client's training, whatever the method.

The client trains on as many samples as it has, but with the classes in other shares: samples of a rare class come
several times, those of a common one not all. In expectation that is a loss with a weight for every class.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedstill.core.method import Env
from fedstill.core.turn import AnyMethod, Turn, Wrapper, wrappers
from fedstill.core.value import setting
from fedstill.data.samples import Samples, apportion


@wrappers.register("class-weights")
@dataclass(frozen=True)
class ClassWeights(Wrapper):
    """A client's classes in shares of n_c^(1 − strength): as they are at 0, all equal at 1.

    Methods that upload label counts upload those of the weighted samples. It stands alone: noise for privacy is
    reckoned for samples that each come once.
    """

    strength: float = setting(1.0, ge=0, le=1, doc="0: classes as they are; 1: every class counts the same")

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn on the weighted samples, the same in every round."""

        def weighted(env: Env, state: Any, down: Any, data: Samples) -> tuple[Any, Any]:
            return turn(env, state, down, self.weighted(env, data))

        return weighted

    def weighted(self, env: Env, data: Samples) -> Samples:
        """As many samples, each class with its new share: its samples in turn, in an order drawn once."""
        counts = data.counts(env.classes).numpy()
        there = counts > 0
        shares = np.where(there, counts.astype(float) ** (1 - self.strength), 0.0)
        wanted = apportion(shares, len(data))
        stream = env.at(0, env.client).stream("class weights")
        chosen = []
        for number in np.flatnonzero(there).tolist():
            own = torch.nonzero(data.y == number).flatten()
            order = own[torch.randperm(len(own), generator=stream)]
            chosen.append(order.repeat(-(-int(wanted[number]) // len(own)))[: int(wanted[number])])
        return data[torch.cat(chosen).sort().values]
