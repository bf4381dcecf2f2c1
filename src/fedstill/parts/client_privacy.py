"""Client-level differential privacy: what a client sends is clipped, and noise is added once to the sum.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018. All clients count
the same here, since a weight by samples would itself tell of a client; m of K take part in a round, drawn without
replacement, and that is how ε is counted where only the server knows who they are. With T1 the slots are on the
clients: what they send is then the step from w and the change of their slot, clipped together, so that w and ŵ are both
private.
"""

import hashlib
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core import record
from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, State
from fedstill.core.turn import AnyMethod, Turn, Wrapper, wrappers
from fedstill.core.value import by_field, setting
from fedstill.parts.accounting import client_epsilon, client_noise
from fedstill.parts.gather import Changed, LastUpload, Remember, gather_of
from fedstill.parts.noise import gaussian, key_of, stream_of
from fedstill.parts.secure_sums import SecureSums
from fedstill.parts.sums import counters, not_sums, origin, readable, rebuilt, shared, summing, vector

STEPS, COUNTED = 6, 0.2
"""Noisy counts by which a clip is found in a round, and the share of σ⁻² that they spend."""


@wrappers.register("private-clients")
@dataclass(frozen=True)
class PrivateClients(Wrapper):
    """(ε, δ)-differential privacy for each client as a whole: clipped uploads, Gaussian noise on their sum."""

    together = True
    epsilon: float | None = setting(None, gt=0, doc="ε that the whole run may cost a client; none: no limit")
    delta: float = setting(1e-5, gt=0, lt=1, doc="δ: below 1 over the number of clients")
    clip: float = setting(1.0, gt=0, doc="norm that what a client sends is clipped to")
    quantile: float | None = setting(
        None, gt=0, lt=1, doc="clip in every round to the norm that this share of the clients keeps; none: to clip"
    )
    noise: float | None = setting(
        None, gt=0, doc="σ in units of 2·clip, how far one client moves the sum; none: from ε"
    )
    clients: int | None = setting(None, ge=1, doc="clients that are drawn from (K): the run's")
    active: int | None = setting(None, ge=1, doc="clients drawn in a round (m): the run's")
    shared: float = setting(
        0.0, ge=0, le=1, doc="the clients add the noise, and this share of them is certain to be summed; 0: the server"
    )
    hidden: bool = setting(
        True, doc="only the server knows who takes part in a round, so ε counts m of K; false: as if all did always"
    )
    keyed: bool = setting(True, doc="noise from the run's seed (to repeat a simulation); false: from the machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is None and self.noise is None:
            raise UsageError("private-clients: needs epsilon (and delta), or the noise itself")

    def fitted(self, method: AnyMethod) -> AnyMethod:
        """T1's slots go to the clients."""
        return summing(method)

    @property
    def reads_steps(self) -> bool:
        """It clips the step."""
        return True

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs a server that uses sums only, and weights that go down."""
        if "weights" not in {f.name for f in fields(method.downloads())}:
            return "clips how far a client moves the weights it got; this method sends none down"
        if self.quantile is not None and isinstance(gather_of(method), Remember):
            return "with quantile only the server knows the clip, so clients can keep no slots; set gather=everyone"
        return not_sums(method, upload)

    def beside(self, chain: Sequence[Wrapper]) -> str | None:
        """Secure sums must count all clients alike; shared noise adds up only if as many are certain to be summed."""
        if any(w.by_samples is not False for w in chain if isinstance(w, SecureSums)):
            return "clients must count alike, or one moves the sum by more than its clip; set by_samples = false"
        if not self.shared:
            return None
        if self.quantile is not None:
            return "quantile: a server that sees sums only cannot look at norms; set a clip"
        least = max((w.threshold for w in chain if isinstance(w, SecureSums)), default=0.0)
        if least < self.shared - 1e-9:
            return f"shared = {self.shared:.3g}: needs secure-sums with threshold ≥ {self.shared:.3g}"
        return None

    def unfit(self, module: nn.Module) -> str | None:
        """Counters are no part of a vector."""
        return counters(module)

    def settled(self, method: AnyMethod, clients: int, active: int, rounds: int, turns: int) -> "PrivateClients":
        """K, m, and the σ that spends ε in all rounds."""
        known = replace(self, clients=clients, active=active)
        if known.delta * clients >= 1:
            raise UsageError(f"delta = {known.delta:g}: must be < 1/{clients}, one over the number of clients")
        if known.noise is not None or known.epsilon is None:
            return known
        return replace(known, noise=client_noise(known.epsilon, clients, known.counted, rounds, known.delta))

    @property
    def counted(self) -> int:
        """Clients of a round, as ε counts them: all, where it is no secret who takes part.

        A hub that is to see sums only (`shared`) knows whom it asked, so to it the draw hides nobody.
        """
        assert self.clients is not None
        assert self.active is not None
        return self.active if self.hidden and not self.shared else self.clients

    def deployed(self) -> "PrivateClients":
        """Whoever knows the seed, as every site does, could take keyed noise off again, and tell who takes part."""
        return replace(self, keyed=False, hidden=False)

    def effects(self, upload: type) -> Mapping[str, str]:
        """Everything additive is covered; the rest is a counter."""
        limit = "noise on the sum" if self.epsilon is None else f"covered: (ε ≤ {self.epsilon:g}, δ = {self.delta:g})"
        norm = f"{self.clip:g}" if self.quantile is None else f"the {self.quantile:g} quantile of the norms"
        effect = f"clipped to {norm}; {limit} for each client"
        return {f.name: effect for f in fields(upload) if f.metadata["carries"] is not Carries.VERSION}

    def std(self, clip: float) -> float:
        """Standard deviation of the noise on the sum: σ times how far replacing one client moves it.

        Where the clip is looked for with noisy counts, these have their part: all together they cost as much as one
        release with σ, since σ⁻² is the sum of all releases' σ⁻².
        """
        return (self.noise or 0.0) / math.sqrt(1.0 if self.quantile is None else 1 - COUNTED) * 2 * clip

    @property
    def count_std(self) -> float:
        """Standard deviation of the noise on each of the counts; one client replaced moves a count by one."""
        return (self.noise or 0.0) * math.sqrt(STEPS / COUNTED)

    def spent(self, rounds: int) -> float:
        """ε of so many rounds."""
        assert self.noise is not None
        assert self.clients is not None
        return client_epsilon(self.noise, self.clients, self.counted, rounds, self.delta) if rounds else 0.0

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn, its upload clipped; the client's slot moves as far as the server will hear."""

        def clipped(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            state, upload = turn(env, state, down, data)
            if self.quantile is not None:
                return state, upload  # the server, which sees all norms, clips
            start = origin(upload, down)
            short = start + shortened(vector(upload) - start, self.clip)
            protected = rebuilt(upload, short)
            if isinstance(upload, Changed):
                state = with_slot(state, moved_slot(upload, protected))
            if self.shared:
                std = self.std(self.clip) / math.sqrt(math.ceil(self.shared * (self.active or 1)))
                protected = rebuilt(protected, short + self.draw(env, std, len(short), [protected]))
            return state, protected

        return clipped

    def received(self, env: Env, replies: Sequence[Reply[Any]]) -> list[Reply[Any]]:
        """The mean of all, with noise on their sum; nothing of a single client is seen by the method."""
        replies = readable(replies)
        good = [reply for reply in replies if reply.error is None]
        if not good:
            return replies
        if self.epsilon is not None and self.spent(env.round + 1) > self.epsilon * (1 + 1e-9):
            why = f"privacy: ε = {self.epsilon:g} would be exceeded ({self.spent(env.round):.3g} spent so far)"
            return [replace(reply, upload=None, error=reply.error or why) for reply in replies]
        uploads = [reply.upload for reply in good]
        clip = self.clip if self.quantile is None else self.found_clip(env, good)
        total = torch.stack([self.bounded(reply, clip) for reply in good]).sum(0)
        if not self.shared:
            total = total + self.draw(env, self.std(clip), len(total), uploads)
        alike = sum(env.sizes) / env.clients
        means = iter(shared(good, total / len(good), [alike] * len(good)))
        return [reply if reply.error else next(means) for reply in replies]

    def bounded(self, reply: Reply[Any], clip: float) -> Tensor:
        """A reply's vector, clipped again: compression may have made it longer, and not every client is honest."""
        numbers = vector(reply.upload)
        if reply.down is None or self.shared:  # with its noise it is longer
            return numbers
        start = origin(reply.upload, reply.down)
        return start + shortened(numbers - start, clip)

    def found_clip(self, env: Env, good: Sequence[Reply[Any]]) -> float:
        """The norm that `quantile` of the round's clients keep, found by noisy counts of who is below it.

        Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping. NeurIPS 2021: a
        clip that too many keep is made smaller, C ← C exp(−η (b̄ − γ)). Here a few such steps are made in every round,
        from `clip` on, so that nothing need be kept or sent down.
        """
        assert self.quantile is not None
        norms = [float((vector(r.upload) - origin(r.upload, r.down)).norm()) for r in good]
        noise = self.draw(env, self.count_std, STEPS, [r.upload for r in good], "counts").tolist()
        clip = self.clip
        for extra in noise:
            share = (sum(norm <= clip for norm in norms) + extra) / len(norms)
            clip *= math.exp(self.quantile - min(1.0, max(0.0, share)))
        return clip

    def draw(self, env: Env, std: float, count: int, uploads: Sequence[Any], purpose: str = "noise") -> Tensor:
        """Noise for a sum: keyed by all that goes into it, so that other uploads never meet the same noise."""
        key = secrets.token_bytes(32)
        if self.keyed:
            digest = hashlib.blake2b(b"".join(record.dumps(upload) for upload in uploads)).hexdigest()
            key = key_of(env.seed, "private clients", digest, env.round, env.client)
        return gaussian(stream_of(key, purpose), std, count, not self.keyed)

    def facts(self, env: Env, states: Mapping[int, Any], heard: Collection[int]) -> Mapping[str, Any]:
        """ε that the run has cost every client so far, at δ."""
        return {"epsilon_clients": self.spent(env.round + 1), "delta_clients": self.delta}


def shortened(step: Tensor, clip: float) -> Tensor:
    """A vector brought to the norm `clip` where it is longer.

    >>> shortened(torch.tensor([3.0, 4.0]), 1.0).tolist(), shortened(torch.tensor([0.3, 0.4]), 1.0).tolist()
    ([0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645])
    """
    return step * min(1.0, clip / max(float(step.norm()), 1e-12))


def moved_slot(upload: Changed, protected: Changed) -> State:
    """The slot that the server's sum holds for a client after it has sent this change instead of its own."""
    return {
        name: (weight.double() - upload.change[name] + protected.change[name]).to(weight.dtype)
        for name, weight in upload.weights.items()
    }


def with_slot(state: Any, slot: State) -> Any:
    """A client's state with another last upload, wherever in it that is."""
    if isinstance(state, LastUpload):
        return replace(state, weights=slot)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{name: with_slot(part, slot) for name, part in by_field(state).items()})
    return state
