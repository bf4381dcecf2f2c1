"""Robust means for weight methods: medians, and what prepares replies for another rule (mixing, bucketing).

As in `parts.robust`, replies go in and replies go out. Distances between replies, and from any weighted mean of them,
come from the inner products of their steps, so no vector of all weights of all clients is ever made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, State
from fedstill.core.value import setting
from fedstill.parts.gather import Gather, gathers, mean, weights_in, with_weights
from fedstill.parts.robust import Rule, inner, squared_distances, weight_by_weight


@gathers.register("median")
@dataclass(frozen=True)
class Median(Gather):
    """Coordinate median (Yin et al., ICML 2018): of every weight, the median; every reply passes on with it."""

    reads = (Carries.WEIGHTS,)

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """All replies, saying the same; of an even number the mean of the middle two."""
        low, high = (len(replies) - 1) // 2, len(replies) // 2
        return state, weight_by_weight(replies, lambda values: (values[low] + values[high]) / 2)


@gathers.register("geometric-median")
@dataclass(frozen=True)
class GeometricMedian(Gather):
    """Geometric median (RFA: Pillutla et al., 2022): the point of least summed distance to all replies.

    Smoothed Weiszfeld steps from the mean: z ← Σ x_k/max(ν, ‖x_k − z‖) / Σ 1/max(ν, ‖x_k − z‖). Every reply passes on
    with it.
    """

    reads = (Carries.WEIGHTS,)
    iterations: int = setting(20, ge=1, doc="steps of Weiszfeld's algorithm")
    nu: float = setting(1e-6, gt=0, doc="least distance that is divided by (ν)")

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """All replies, saying the same."""
        states = [weights_in(r) for r in replies]
        centre = mean(states, self.shares(inner(replies, mean(states))).tolist())
        return state, [with_weights(reply, centre) for reply in replies]

    def shares(self, gram: Tensor) -> Tensor:
        """How much each reply counts in the geometric median; `gram`: inner products of steps from any one point."""
        shares = torch.full((len(gram),), 1 / len(gram), dtype=gram.dtype)
        for _ in range(self.iterations):
            apart = (gram.diagonal() - 2 * gram @ shares + shares @ gram @ shares).clamp_min(0).sqrt()
            near = 1 / apart.clamp_min(self.nu)
            shares = near / near.sum()
        return shares


@gathers.register("nearest-neighbour-mixing")
@dataclass(frozen=True)
class NearestNeighbourMixing(Rule):
    """Nearest-neighbour mixing (Allouah et al., AISTATS 2023): every reply becomes the mean of its n − f nearest.

    Itself included. It prepares replies for another rule, in a `chain`.
    """

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """All replies, mixed."""
        states = [weights_in(r) for r in replies]
        distance = squared_distances(inner(replies, mean(states))).fill_diagonal_(-1.0)  # nearest to itself
        near = len(replies) - self.forged(len(replies))
        chosen = distance.argsort(dim=1, stable=True)[:, :near].tolist()
        mixed = [mean([states[other] for other in rows]) for rows in chosen]
        return state, [with_weights(reply, weights) for reply, weights in zip(replies, mixed, strict=True)]


@gathers.register("bucketing")
@dataclass(frozen=True)
class Bucketing(Gather):
    """Bucketing (Karimireddy, He, Jaggi, ICLR 2022): replies are shuffled and averaged in buckets of s.

    One reply a bucket passes on: the plain mean of its weights, with all its samples, in the name of its first client.
    It prepares replies for another rule, in a `chain`.
    """

    reads = (Carries.WEIGHTS,)
    merges = True
    size: int = setting(2, ge=1, doc="replies in a bucket (s)")

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """The buckets' means, by their first clients' numbers."""
        order = torch.randperm(len(replies), generator=env.stream("bucketing")).tolist()
        buckets = [sorted(order[start : start + self.size]) for start in range(0, len(order), self.size)]
        return state, [self.merged([replies[row] for row in bucket]) for bucket in sorted(buckets)]

    def merged(self, bucket: Sequence[Reply[Any]]) -> Reply[Any]:
        """A bucket as one reply."""
        weights: State = mean([weights_in(r) for r in bucket])
        return replace(with_weights(bucket[0], weights), samples=sum(r.samples for r in bucket))
