"""Tang, Ding, Hu, Guo, Shen, Ma, Jiang: FedRAD: Heterogeneous Federated Learning via Relational Adaptive Distillation.
Sensors 2023.
Equation numbers are the paper's; the method page lists every choice and deviation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast, Global
from fedstill.parts.gather import Everyone, Gather, Update, average, caught_up, mean
from fedstill.parts.learner import Memory
from fedstill.parts.losses import cross_entropy, decaying, entropy_weight, kl, relation_gap, relations


@record
class Local:
    """What stays on a client: its local model w_i (None before its first turn), its optimiser's state, the gather's."""

    weights: State | None
    memory: Memory
    kept: Any


@methods.register("fedrad")
@dataclass(frozen=True)
class FedRAD(Averaging):
    """A local model that stays and a copy of the global one teach each other, by samples and by pairs of samples.

    Algorithm 1: w_g goes down (line 6), both models are trained together, the trained copy of w_g comes up.
    """

    paper = "Tang et al., FedRAD: Heterogeneous Federated Learning via Relational Adaptive Distillation, Sensors 2023"
    made_for = ("labels differ much from client to client", "few clients are active in a round")
    private_learners = 2
    late_replies = True
    epochs: int = setting(5, ge=1, doc="local epochs in a round (E)")
    batch: int = setting(128, ge=1, doc="batch size (B)")
    lr_decay: float = setting(0.98, gt=0, le=1, doc="factor on the learning rate after every round")
    temperature: float = setting(1.0, gt=0, doc="temperature of p_g and p_n (T)")
    eta: float = setting(1.6, gt=0, doc="maps the entropy to the weight of single samples (η, 10)")
    alpha0: float = setting(0.9, ge=0, le=1, doc="weight of the labels in the first round (α₀)")
    alpha_decay: float = setting(0.98, gt=0, le=1, doc="factor on α after every round")
    alpha_min: float = setting(0.3, ge=0, le=1, doc="α does not fall below it")
    delta: float = setting(1.0, gt=0, doc="where the Huber loss turns linear (δ, 8)")
    paper_mu: bool = setting(False, doc="divide the pairs' distances by their sum over B², as (7) is written")
    pairs: Literal["mean", "letter", "sum"] = setting(
        "mean", doc="L_RKD: mean over pairs; letter: (8) divided by B as the other sums are; sum: (8) beside means"
    )
    weighting: Literal["mean", "samples"] = setting(
        "mean", doc="the server's mean of the copies: plain (line 8), or by samples (1)"
    )
    local_start: Literal["downloaded", "own"] = setting(
        "downloaded", doc="the local model starts as the first w_g that arrives, or from a seed of the client's own"
    )
    relational: bool = setting(True, doc="distil relations; false: single samples only (no L_RKD)")
    adaptive_weight: bool = setting(True, doc="λ from the entropy; false: λ = 0.5 (no EWAW)")
    adaptive_alpha: bool = setting(True, doc="α decays; false: α stays α₀ (no EDA)")
    gather: Gather = setting(Everyone(), doc="what the server does with the replies (remember: also report `overall`)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_min > self.alpha0:
            raise UsageError(f"alpha_min = {self.alpha_min}: must be ≤ alpha0 = {self.alpha0}")

    @property
    def server_sums(self) -> Literal["samples", "plain"]:  # type: ignore[override]
        """As `weighting` says."""
        return "samples" if self.weighting == "samples" else "plain"

    def init_client(self, env: Env) -> Local:
        """The client's own w_i (line 1), or none yet: then it starts as the first w_g that arrives."""
        return Local(env.initial(env.client) if self.local_start == "own" else None, {}, None)

    def client(self, env: Env, state: Local, down: Broadcast, data: Samples) -> tuple[Local, Update]:
        """Client update (lines 10–18): the local model w_i and the copy w_{g,i}, in step."""
        local = self.learner(env, env.module(state.weights or down.weights)).recall(state.memory)
        copy = self.learner(env, env.module(down.weights))
        alpha = self.alpha(env)
        for x, y in self.batches(env, data, copy.module):
            own, other = local(x), copy(x)
            for_local, for_copy = self.losses(alpha, own, other, y)
            local.step(for_local)
            copy.step(for_copy)
        kept, upload = self.gather.outgoing(env, state.kept, copy.weights)
        return Local(local.weights, local.memory, kept), upload

    def mixing(self) -> str | None:
        """L_RKD compares pairs of samples."""
        return "relational = true compares pairs of samples; set relational=false" if self.relational else None

    def alpha(self, env: Env) -> float:
        """α of this round (EDA)."""
        return decaying(self.alpha0, self.alpha_decay if self.adaptive_alpha else 1.0, self.alpha_min, env.round)

    def weight(self, other: Tensor) -> Tensor | float:
        """λ of this batch (9, 10), from the global model's logits (EWAW); all on single samples without L_RKD."""
        if not self.relational:
            return 1.0
        return entropy_weight(other, self.eta, self.temperature) if self.adaptive_weight else 0.5

    def losses(self, alpha: float, own: Tensor, other: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(2) for the local model's logits `own`, (3) for the copy's `other`; in each the other's are constants."""
        weight = self.weight(other)
        local = weight * kl(other.detach(), own, self.temperature)
        copy = kl(own.detach(), other, self.temperature)
        if self.relational:
            mine, theirs = relations(own, self.paper_mu), relations(other, self.paper_mu)
            local = local + (1 - weight) * relation_gap(theirs, mine, self.delta, self.pairs)
            copy = copy + relation_gap(mine, theirs, self.delta, self.pairs)
        local = alpha * cross_entropy(own, y) + (1 - alpha) * local
        return local, alpha * cross_entropy(other, y) + (1 - alpha) * copy

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Global:
        """w_g ← the plain mean of the uploaded copies (line 8), or their mean by samples (1)."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Global(server.weights, memory)
        kept = caught_up(kept, server.weights)
        plain_mean = self.weighting == "mean"
        return Global(mean([r.upload.weights for r in kept if r.upload]) if plain_mean else average(kept), memory)

    def models(self, env: Env, server: Global) -> Mapping[str, State]:
        """`global`, and with `Remember` also `overall`."""
        return {"global": server.weights, **self.gather.models(env, server.memory)}

    def own(self, env: Env, state: Local) -> State | None:
        """The client's local model w_i."""
        return state.weights

    def facts(self, env: Env, server: Global) -> Mapping[str, Any]:
        """α of the round, and what the gather reports."""
        return {"alpha": self.alpha(env), **super().facts(env, server)}
