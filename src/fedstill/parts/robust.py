"""Robust gathers for weight methods: their aggregate stays sound where some uploads are forged.

Replies in, replies out: a selecting rule passes on the replies it believes; the others pass on replies whose weights
they have changed. So the method averages as it always does (by samples), and a rule composes with `Remember` in a
`Chain`, which then remembers only what the rule let through. Everything is taken from the inner products of the
clients' steps, tensor by tensor, so no vector of all weights of all clients is ever made.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import fedstill.parts.identification  # noqa: F401 (says what follows from `trusted`)
from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, State, record
from fedstill.core.value import setting
from fedstill.parts.gather import Gather, average, cast, gathers, mean, weights_in, with_weights


@record
class Belief:
    """What a selecting rule found in the last round."""

    answered: tuple[int, ...]
    believed: tuple[int, ...]


@record
class Centre:
    """What a clipping rule keeps: its last aggregate, the lengths of past steps, what it found in the last round."""

    weights: State
    lengths: Tensor
    belief: Belief


def inner(replies: Sequence[Reply[Any]], centre: State) -> Tensor:
    """Clients × clients: the inner products of the steps from the centre, over all floating-point weights."""
    gram = torch.zeros(len(replies), len(replies), dtype=torch.float64)
    for name, origin in centre.items():
        if origin.is_floating_point():
            step = torch.stack([weights_in(r)[name] for r in replies]).double().flatten(1) - origin.double().flatten()
            gram += step @ step.T
    return gram


def clipped(weights: State, centre: State, factor: float) -> State:
    """centre + factor (w − centre); counters stay as they came."""
    if factor >= 1:
        return weights
    return {n: torch.lerp(centre[n], t, factor) if t.is_floating_point() else t for n, t in weights.items()}


def squared_distances(gram: Tensor) -> Tensor:
    """Clients × clients: the squared distances between replies, from the inner products of their steps."""
    lengths = gram.diagonal()
    return (lengths[:, None] + lengths - 2 * gram).clamp_min(0)


def weight_by_weight(replies: Sequence[Reply[Any]], middle: Callable[[Tensor], Tensor]) -> list[Reply[Any]]:
    """All replies with the same weights: of every weight `middle` of the clients' values, which come sorted."""
    centre = {}
    for name, like in weights_in(replies[0]).items():
        values = torch.stack([weights_in(r)[name] for r in replies]).double().sort(0).values
        centre[name] = cast(middle(values), like)
    return [with_weights(reply, centre) for reply in replies]


@dataclass(frozen=True)
class Rule(Gather, ABC):
    """Base of the rules that are told how many replies may be forged."""

    reads = (Carries.WEIGHTS,)
    tolerate: float = setting(0.2, ge=0, lt=0.5, doc="share of a round's replies that may be forged")

    def forged(self, count: int) -> int:
        """f: how many of so many replies may be forged; always fewer than half."""
        return max(0, min(math.ceil(self.tolerate * count - 1e-9), (count - 1) // 2))


@dataclass(frozen=True)
class Selecting(Rule, ABC):
    """Base of the Krum rules: a reply's score is its mean squared distance to its n − f − 1 nearest others."""

    @abstractmethod
    def keep(self, count: int) -> int:
        """How many replies with the best scores pass."""

    def init(self, env: Env, weights: State | None) -> Belief:
        """Nothing found yet."""
        return Belief((), ())

    def gather(self, env: Env, state: Belief, replies: Sequence[Reply[Any]]) -> tuple[Belief, list[Reply[Any]]]:
        """Pass on the replies that have the nearest neighbours."""
        count = len(replies)
        near = max(1, count - self.forged(count) - 1)
        gram = inner(replies, mean([weights_in(r) for r in replies]))  # about the mean: nothing cancels
        distance = squared_distances(gram).fill_diagonal_(0)
        score = distance.sort(1).values[:, 1 : near + 1].mean(1).nan_to_num(0.0)  # nan: a reply that is alone
        best = sorted(score.argsort(stable=True)[: self.keep(count)].tolist())
        chosen = [replies[row] for row in best]
        return Belief(_clients(replies), _clients(chosen)), chosen


@gathers.register("krum")
@dataclass(frozen=True)
class Krum(Selecting):
    """Krum (Blanchard et al., NIPS 2017): the one reply nearest to its neighbours."""

    def keep(self, count: int) -> int:
        """One."""
        return 1

    def facts(self, env: Env, state: Belief) -> Mapping[str, Any]:
        """Whose reply it was."""
        return {"chosen": list(state.believed)}


@gathers.register("multi-krum")
@dataclass(frozen=True)
class MultiKrum(Selecting):
    """Multi-Krum (Blanchard et al., NIPS 2017): the n − f replies nearest to their neighbours."""

    def keep(self, count: int) -> int:
        """n − f."""
        return count - self.forged(count)

    def facts(self, env: Env, state: Belief) -> Mapping[str, Any]:
        """Who passed."""
        return {"trusted": list(state.believed), "answered": list(state.answered)}


@gathers.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Trimmed mean (Yin et al., ICML 2018): of every weight, the mean without the f largest and the f smallest values.

    Every reply passes on with that mean for its weights.
    """

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """All replies, saying the same."""
        cut = self.forged(len(replies))
        return state, weight_by_weight(replies, lambda values: values[cut : len(values) - cut].mean(0))


@dataclass(frozen=True)
class Clipping(Gather, ABC):
    """Base of the rules that clip steps from their last aggregate, which at first is the initial model."""

    reads = (Carries.WEIGHTS,)

    def init(self, env: Env, weights: State | None) -> Centre:
        """The initial model; no steps so far."""
        assert weights is not None
        return Centre(weights, torch.zeros(0, dtype=torch.float64), Belief((), ()))


@gathers.register("centered-clipping")
@dataclass(frozen=True)
class CenteredClipping(Clipping):
    """Centred clipping (Karimireddy et al., ICML 2021): no step from the last aggregate v is longer than τ.

    v ← v + mean_k (w_k − v) min(1, τ / ‖w_k − v‖), L times over.
    """

    tau: float | None = setting(None, gt=0, doc="longest step τ (none: the median step of the round)")
    iterations: int = setting(1, ge=1, doc="how often the centre is moved in a round (L)")

    def gather(self, env: Env, state: Centre, replies: Sequence[Reply[Any]]) -> tuple[Centre, list[Reply[Any]]]:
        """All replies, their steps clipped."""
        centre, moved = state.weights, list(replies)
        for _ in range(self.iterations):
            lengths = inner(replies, centre).diagonal().clamp_min(0).sqrt()
            tau = float(lengths.median()) if self.tau is None else self.tau
            moved = [
                with_weights(reply, clipped(weights_in(reply), centre, tau / max(float(length), 1e-30)))
                for reply, length in zip(replies, lengths, strict=True)
            ]
            centre = average(moved)
        return replace(state, weights=centre), moved


@gathers.register("clipped-clustering")
@dataclass(frozen=True)
class ClippedClustering(Clipping):
    """Clipped clustering (Li, Ngai, Voigt, 2023): clip, split in two by direction, believe the larger group.

    Steps from the last aggregate are clipped to the median length of all steps so far; agglomerative clustering of
    their cosine distances (average linkage).
    """

    def gather(self, env: Env, state: Centre, replies: Sequence[Reply[Any]]) -> tuple[Centre, list[Reply[Any]]]:
        """The larger group's replies, their steps clipped."""
        gram = inner(replies, state.weights)
        lengths = gram.diagonal().clamp_min(0).sqrt()
        past = torch.cat([state.lengths, lengths])
        tau = float(past.quantile(0.5))
        norm = lengths[:, None] * lengths
        cosine = torch.where(norm > 0, gram / norm.where(norm > 0, 1.0), 0.0).clamp(-1, 1)
        rows = _larger_side(1 - cosine)
        chosen = [
            with_weights(
                replies[row], clipped(weights_in(replies[row]), state.weights, tau / max(float(lengths[row]), 1e-30))
            )
            for row in rows
        ]
        return Centre(average(chosen), past, Belief(_clients(replies), _clients(chosen))), chosen

    def facts(self, env: Env, state: Centre) -> Mapping[str, Any]:
        """Who passed."""
        return {"trusted": list(state.belief.believed), "answered": list(state.belief.answered)}


def _larger_side(distance: Tensor) -> list[int]:
    """The larger of two clusters; on a tie the one with the smaller mean distance inside."""
    count = len(distance)
    if count < 3:
        return list(range(count))
    from sklearn.cluster import AgglomerativeClustering  # slow to import, and only needed here

    tree = AgglomerativeClustering(2, metric="precomputed", linkage="average")
    sides = tree.fit_predict(distance.fill_diagonal_(0).numpy())
    groups = [[row for row in range(count) if sides[row] == side] for side in (0, 1)]
    return max(groups, key=lambda rows: (len(rows), -float(distance[rows][:, rows].mean())))


def _clients(replies: Sequence[Reply[Any]]) -> tuple[int, ...]:
    return tuple(reply.client for reply in replies)
