"""Sample-level differential privacy: every client trains by DP-SGD and keeps account of what it has spent.

`PrivateSamples` is wrapped around a client's turn. It finds the noise that (ε, δ) asks for, lets the turn draw batches
and make learners through a `SampleGuard`, writes down what was released, and lets the client take no turn that would
cost more than ε. Whatever a client sends that is a function of its trained weights alone is covered, as is all that
anybody makes of it later; what it reads off its samples in another way is not, and the ledger says so field by field.
"""

import hashlib
import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn

from fedstill.core import record
from fedstill.core.errors import Abstains, RunError, UsageError
from fedstill.core.method import Env
from fedstill.core.record import Carries
from fedstill.core.turn import AnyMethod, Beside, Turn, Wrapper, apart, wrappers
from fedstill.core.value import by_field, setting
from fedstill.parts.accounting import Release, added, sample_epsilon, sample_noise
from fedstill.parts.learner import LocalTraining
from fedstill.parts.noise import key_of
from fedstill.parts.private_learner import SampleGuard, refusal

COVERED = frozenset(
    {
        Carries.WEIGHTS, Carries.CHANGE, Carries.CONTROL, Carries.GENERATOR, Carries.DISCRIMINATOR,
        Carries.LOGITS, Carries.PREDICTIONS, Carries.ROWS, Carries.VERSION,
    }
)  # fmt: skip
"""What follows from trained weights alone, or from nothing of the client's."""
NOT_COVERED = {
    Carries.SIZE: "the number itself is told",
    Carries.LOSS: "computed from the samples",
    Carries.STEPS: "follows from the number of samples",
    Carries.CLASS_LOGITS: "computed from the samples",
    Carries.PRESENCE: "read off the labels",
    Carries.LABEL_COUNTS: "read off the labels",
    Carries.LACK: "read off the labels",
    Carries.FEATURES: "computed from the samples",
    Carries.PROTOTYPES: "computed from the samples",
    Carries.CLASS_PREDICTIONS: "computed from the samples",
}
"""What a client reads off its samples by other ways than training, and why no noise in training covers it."""
COUNTS = frozenset({Carries.SIZE, Carries.STEPS})
"""How many samples there are is taken to be public: σ, sampling rate and steps follow from it."""


@record.record
class Budget:
    """What a client keeps of its privacy: all it has released, ε of it, the turns it took, and its noise's secret."""

    releases: tuple[Release, ...]
    epsilon: float
    turns: int
    secret: str


@wrappers.register("private-samples")
@dataclass(frozen=True)
class PrivateSamples(Wrapper):
    """(ε, δ)-differential privacy for each sample of a client: DP-SGD on Poisson batches, with a budget."""

    once = True
    epsilon: float | None = setting(None, gt=0, doc="ε that a client may spend in the whole run; none: no limit")
    delta: float = setting(1e-5, gt=0, lt=1, doc="δ: below 1 over a client's number of samples")
    clip: float = setting(1.0, gt=0, doc="norm that each sample's gradient is clipped to")
    noise: float | None = setting(None, gt=0, doc="σ of the noise in units of clip; none: found from ε and δ")
    turns: int | None = setting(None, ge=1, doc="turns of a client that ε is planned for; none: the most of the run")
    keyed: bool = setting(
        True, doc="noise follows from the run's seed (to repeat a simulation); false: from a secret of the client's too"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is None and self.noise is None:
            raise UsageError("private-samples: needs epsilon (and delta), or the noise itself")

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs a method that trains on private samples by `learner.step(private, …)` alone."""
        if not isinstance(method, LocalTraining) or not method.private_learners:
            return "this method does not train sample by sample, so no noise can be counted"
        return method.mixing()

    def unfit(self, module: nn.Module) -> str | None:
        """Layers that mix samples have no per-sample gradients."""
        return refusal(module)

    def beyond(self, method: AnyMethod, env: Env) -> str | None:
        """δ of 1/n and more, an ε that no noise gives, and noise that spends more than ε in a single turn."""
        assert isinstance(method, LocalTraining)
        of_size: dict[int, int] = {}
        for client, samples in enumerate(env.sizes):
            of_size.setdefault(samples, client)
        of_size.pop(0, None)
        if not of_size:
            return None
        most, fewest = max(of_size), min(of_size)
        if self.delta * most >= 1:
            return f"delta = {self.delta:g}: must be < 1/{most}, one over the samples of client {of_size[most]}"
        if self.noise is None or self.epsilon is None:
            self.plan(method, env.at(0, of_size[fewest]), fewest)  # of few samples each batch tells most
            return None
        for samples, client in of_size.items():
            cost = sample_epsilon([self.plan(method, env.at(0, client), samples)], self.delta)
            if cost > self.epsilon * (1 + 1e-9):
                given = f"noise = {self.noise:g}: one turn of client {client} costs ε = {cost:.3g}"
                return f"{given}, more than epsilon = {self.epsilon:g}; leave one of them out, or raise it"
        return None

    def settled(self, method: AnyMethod, clients: int, active: int, rounds: int, turns: int) -> "PrivateSamples":
        """ε is planned for as many turns as the busiest client has."""
        return self if self.turns else replace(self, turns=turns)

    def deployed(self) -> "PrivateSamples":
        """Every site has a secret of its own."""
        return replace(self, keyed=False)

    def effects(self, upload: type) -> Mapping[str, str]:
        """Which fields the guarantee covers; by itself only, where another tells of the samples without noise."""
        promise = f"covered: (ε ≤ {self.epsilon:g}, δ = {self.delta:g})" if self.epsilon else "covered by noise"
        in_the_open = open_fields(upload)
        rest = f", by itself: {', '.join(in_the_open)} tell without noise" if in_the_open else ""
        effects = {}
        for f in fields(upload):
            what = f.metadata["carries"]
            why = NOT_COVERED.get(what, "nobody has shown that it comes of training alone")
            effects[f.name] = f"{promise} for each sample{rest}" if what in COVERED else f"not covered: {why}"
        return effects

    def plan(self, method: LocalTraining, env: Env, samples: int) -> Release:
        """What one turn on this many samples releases: σ, sampling rate and number of batches.

        L learners that step on the same batch are one release: L noisy sums of one Poisson sample, which tell as much
        as a single one with σ/√L. (Counted as L releases of L samples they would seem cheaper than they are.)
        """
        steps = method.private_steps(env, samples)
        rate = min(1.0, method.batch / samples)
        if self.noise is not None:
            return Release(self.noise / math.sqrt(method.private_learners), rate, steps)
        assert self.epsilon is not None
        return Release(sample_noise(self.epsilon, self.delta, rate, steps * (self.turns or 1)), rate, steps)

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn with private learners; one that would cost more than ε is not taken."""
        assert isinstance(method, LocalTraining)

        def private(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            budget, inner = apart(state)
            budget = budget or Budget((), 0.0, 0, "" if self.keyed else env.secret or secrets.token_hex(32))
            if not len(data):  # nothing to protect, and nothing to draw from
                inner, upload = turn(env, inner, down, data)
                return Beside(budget, inner), upload
            if self.delta * len(data) >= 1:
                raise Abstains(f"privacy: delta = {self.delta:g}: must be < 1/{len(data)}, one over the samples")
            costs = self.plan(method, env, len(data))
            releases = added(budget.releases, costs)
            spent = sample_epsilon(releases, self.delta)
            if self.epsilon is not None and spent > self.epsilon * (1 + 1e-9):
                raise Abstains(f"privacy: ε = {self.epsilon:g} would be exceeded ({budget.epsilon:.3g} spent so far)")
            learners = method.private_learners
            noise = costs.noise * math.sqrt(learners)
            guard = SampleGuard(noise, self.clip, self.key(env, down, data, budget.secret), not self.keyed)
            inner, upload = turn(replace(env, guard=guard), inner, down, data)
            if guard.released > learners * costs.count or guard.batches_drawn > costs.count:
                counted = f"{costs.count} batches of {learners} steps were counted"
                raise RunError(
                    f"client {env.client}: {guard.released} steps on {guard.batches_drawn} batches where {counted}"
                )
            return Beside(Budget(releases, spent, budget.turns + 1, budget.secret), inner), upload

        return private

    def facts(self, env: Env, states: Mapping[int, Any], heard: Collection[int]) -> Mapping[str, Any]:
        """ε that each client of the round has spent so far, at δ; a reply that was refused has cost it as much."""
        budgets = {client: budget_of(state) for client, state in states.items()}
        spent = {str(client): budget.epsilon for client, budget in budgets.items() if budget}
        return {"epsilon_spent": spent, "delta": self.delta}

    def key(self, env: Env, down: Any, data: Any, secret: str) -> bytes:
        """The key of a turn's noise, from everything the turn sees.

        A turn that is taken again (a run was resumed, an answer was lost) has the same noise on the same samples and
        download, so nothing new is released; any other samples or download meet other noise. The secret, where the
        client has one, never leaves it: the run's seed alone does not give the noise away.
        """
        return key_of(env.seed, "private samples", secret, fingerprint(down, data), env.round, env.client)


def open_fields(upload: type) -> list[str]:
    """The fields of an upload that tell of the samples without noise, whatever the training."""
    return [f.name for f in fields(upload) if f.metadata["carries"] not in (*COVERED, *COUNTS)]


def fingerprint(down: Any, data: Any) -> str:
    """A digest of a download and of a client's samples."""
    digest = hashlib.blake2b(record.dumps(down), digest_size=32)
    for value in by_field(data).values():
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def budget_of(state: Any) -> Budget | None:
    """A client's budget, wherever in its state it is; None where there is none."""
    while isinstance(state, Beside):
        if isinstance(state.own, Budget):
            return state.own
        state = state.inner
    return None
