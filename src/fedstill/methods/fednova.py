"""Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
NeurIPS 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, carries, record
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast, Global
from fedstill.parts.gather import Update, caught_up, stepped
from fedstill.parts.learner import parameter_names


@record
class Walked(Update):
    """What leaves a client: its weights, and how many steps it took."""

    steps: int = carries(Carries.STEPS)


MOST = 20
"""Times the steps of the samples that a client counts for: a site that is held down trains on more than those."""


@methods.register("fednova")
@dataclass(frozen=True)
class FedNova(Averaging):
    """A client that took more local steps does not pull the average further for it.

    Normalised averaging: w ← w + τ_eff Σ_k p_k (w_k − w)/‖a_k‖₁, p_k = n_k/Σn, τ_eff = Σ_k p_k ‖a_k‖₁.
    """

    paper = (
        "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, "
        "NeurIPS 2020"
    )
    private_learners = 1
    late_replies = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd":
            raise UsageError(f"optimizer = {self.optimizer}: fednova knows how far a step goes for sgd only")

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Walked]:
        """E epochs of SGD from w, counted in steps."""
        learner = self.learner(env, env.module(down.weights))
        steps = self.train(env, learner, data)
        return state, Walked(learner.weights, steps)

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Any]]) -> Global:
        """The step from w in which every client's direction counts by n_k alone."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Global(server.weights, memory)
        counts = [r.samples for r in kept]
        shares = normalised_shares(counts, [path_length(r.upload.steps, self.momentum) for r in kept])
        towards = [r.upload.weights for r in caught_up(kept, server.weights)]
        return Global(stepped(server.weights, towards, shares, parameter_names(env), counts), memory)

    def template(self, env: Env) -> Walked:
        """Weights of the global model's form and a count."""
        return Walked(env.form(), 0)

    def objection(self, env: Env, upload: Update) -> str | None:
        """Steps are not negative, nor far more than the client's samples have: τ_eff, which moves all, grows so."""
        steps = upload.steps if isinstance(upload, Walked) else 0
        if steps < 0:
            return f"steps = {steps}: must be ≥ 0"
        samples = env.sizes[env.client or 0]
        usual = self.steps(samples)
        return None if steps <= MOST * usual else f"steps = {steps}: its {samples} samples have {usual}"


def path_length(steps: int, momentum: float) -> float:
    """‖a‖₁: how many gradients' worth the steps went; with momentum ρ a gradient acts on in all later steps.

    >>> path_length(3, 0.0), path_length(3, 0.5)  # 1 + 1 + 1;  (1 + ½ + ¼) + (1 + ½) + 1
    (3.0, 4.25)
    """
    if not momentum:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def normalised_shares(counts: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """p_k τ_eff / ‖a_k‖₁: how far w goes towards each client; a client that took no step has nothing to say."""
    whole = sum(counts)
    effective = sum(n * length for n, length in zip(counts, lengths, strict=True)) / whole
    return [n / whole * effective / length if length else 0.0 for n, length in zip(counts, lengths, strict=True)]
