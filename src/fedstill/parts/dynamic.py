"""Dynamic regularisation: every client's loss is bent, round by round, so that local optima become the global one.

What other methods can take of FedDyn (Acar et al., ICLR 2021): the server's correction, and how a step is bent.
Client gradients and the server's h are kept divided by α: g_k = α d_k, h = α s. So α may be 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.parts.averaging import Averaging, Global
from fedstill.parts.gather import Update, mean
from fedstill.parts.gradients import gradients
from fedstill.parts.learner import Learner, parameter_names, shifted


@record
class Corrected(Global):
    """The server's state: θ, what the gather remembers, and s = h/α, one number for each parameter."""

    correction: State


@record
class Bend:
    """What stays on a client: d_k = ∇L_k(θ_k)/α as far as its turns tell (zero at first), and what the gather keeps."""

    gradient: State
    kept: Any


@dataclass(frozen=True)
class Dynamic(Averaging):
    """What methods share whose clients minimise L_k(θ) − ⟨∇L_k(θ_k), θ⟩ + α/2 ‖θ − θ_t‖²; the server's h corrects."""

    private_learners = 1
    alpha: float = setting(0.01, ge=0, doc="strength of the regularisation (α); 0: FedAvg")
    weighting: Literal["clients", "samples"] = setting(
        "clients", doc="every client counts the same, as in the paper, or by its samples, as in FedAvg"
    )
    max_norm: float | None = setting(None, gt=0, doc="clip a step's gradient to this length (the authors' code: 10)")

    def mixing(self) -> str | None:
        """Clipping is of the whole batch's gradient."""
        return None if self.max_norm is None else f"max_norm = {self.max_norm:g} clips whole batches; set max_norm=none"

    def init_server(self, env: Env) -> Corrected:
        """θ⁰; h = 0."""
        first = super().init_server(env)
        return Corrected(first.weights, first.memory, blank(env))

    def anchor(self, env: Env, learner: Learner, state: Bend) -> list[Tensor]:
        """θ_t + d_k: where the regulariser pulls to."""
        return [p.detach() + state.gradient[n].to(env.device) for n, p in learner.module.named_parameters()]

    def bent_step(self, learner: Learner, anchor: list[Tensor], private: Tensor, free: Tensor | None = None) -> None:
        """A step along the losses' gradient + α (θ − anchor)."""
        with torch.no_grad():
            drift = torch._foreach_sub(learner.parameters, anchor) if self.alpha else None
        if self.max_norm is None:
            learner.step(private, free, shift=drift, pull=self.alpha)
            return
        slopes = gradients(private if free is None else private + free, learner.parameters)
        bent = slopes if drift is None else shifted(slopes, drift, self.alpha)
        length = torch.nn.utils.get_total_norm([slope for slope in bent if slope is not None])
        part = float((self.max_norm / length.clamp_min(1e-12)).clamp_max(1.0))
        learner.apply([None if slope is None else slope * part for slope in bent])

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Global:
        """s ← s − Σ_{k active} share_k κ_k (θ_k − θ), shares of all clients; θ ← mean of the active θ_k − s."""
        assert isinstance(server, Corrected)
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Corrected(server.weights, memory, server.correction)
        counts = [float(r.samples) if self.weighting == "samples" else 1.0 for r in kept]
        active = mean([r.upload.weights for r in kept], counts)
        if not self.alpha:  # h stays 0
            return Corrected(active, memory, server.correction)
        bends = [count * self.bending(r) for count, r in zip(counts, kept, strict=True)]
        bent = mean([r.upload.weights for r in kept], bends) if bends != counts and any(bends) else active
        share = sum(bends) / (sum(env.sizes) if self.weighting == "samples" else env.clients)
        correction = {n: s - share * (bent[n] - server.weights[n]) for n, s in server.correction.items()}
        weights = {n: w - correction[n] if n in correction else w for n, w in active.items()}
        return Corrected(weights, memory, correction)

    def bending(self, reply: Reply[Update]) -> float:
        """κ_k: how strong the client's own regularisation is beside α."""
        return 1.0


def turned(state: Bend, weights: State, start: State) -> State:
    """d_k − (θ_k − θ_t): the estimate of ∇L_k(θ_k)/α after a turn."""
    return {n: d - (weights[n] - start[n]) for n, d in state.gradient.items()}


def blank(env: Env) -> State:
    """A zero for each of the global model's parameters."""
    form = env.form()
    return {name: torch.zeros_like(form[name]) for name in parameter_names(env)}
