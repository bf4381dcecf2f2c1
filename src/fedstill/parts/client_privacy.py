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
from collections.abc import Mapping, Sequence
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
from fedstill.parts.gather import Changed, LastUpload
from fedstill.parts.noise import gaussian, key_of, stream_of
from fedstill.parts.sums import counters, not_sums, origin, readable, rebuilt, shared, summing, vector


@wrappers.register("private-clients")
@dataclass(frozen=True)
class PrivateClients(Wrapper):
    """(ε, δ)-differential privacy for each client as a whole: clipped uploads, Gaussian noise on their sum."""

    together = True
    epsilon: float | None = setting(None, gt=0, doc="ε that the whole run may cost a client; none: no limit")
    delta: float = setting(1e-5, gt=0, lt=1, doc="δ: below 1 over the number of clients")
    clip: float = setting(1.0, gt=0, doc="norm that what a client sends is clipped to")
    noise: float | None = setting(
        None, gt=0, doc="σ in units of 2·clip, how far one client moves the sum; none: from ε"
    )
    clients: int | None = setting(None, ge=1, doc="clients that are drawn from (K); none: the run's")
    active: int | None = setting(None, ge=1, doc="clients drawn in a round (m); none: the run's")
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

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs a server that uses sums only, and weights that go down."""
        if "weights" not in {f.name for f in fields(method.downloads())}:
            return "clips how far a client moves the weights it got; this method sends none down"
        return not_sums(method, upload)

    def unfit(self, module: nn.Module) -> str | None:
        """Counters are no part of a vector."""
        return counters(module)

    def settled(self, method: AnyMethod, clients: int, active: int, rounds: int, turns: int) -> "PrivateClients":
        """K, m, and the σ that spends ε in all rounds."""
        known = replace(self, clients=self.clients or clients, active=self.active or active)
        assert known.clients is not None
        if known.delta * known.clients >= 1:
            raise UsageError(f"delta = {known.delta:g}: must be < 1/{known.clients}, one over the number of clients")
        if known.noise is not None or known.epsilon is None:
            return known
        return replace(known, noise=client_noise(known.epsilon, known.clients, known.drawn, rounds, known.delta))

    @property
    def drawn(self) -> int:
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
        effect = f"clipped to {self.clip:g}; {limit} for each client"
        return {f.name: effect for f in fields(upload) if f.metadata["carries"] is not Carries.VERSION}

    @property
    def std(self) -> float:
        """Standard deviation of the noise on the sum: σ times how far replacing one client moves it."""
        return (self.noise or 0.0) * 2 * self.clip

    def spent(self, rounds: int) -> float:
        """ε of so many rounds."""
        assert self.noise is not None
        assert self.clients is not None
        return client_epsilon(self.noise, self.clients, self.drawn, rounds, self.delta) if rounds else 0.0

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn, its upload clipped; the client's slot moves as far as the server will hear."""

        def clipped(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            state, upload = turn(env, state, down, data)
            start = origin(upload, down)
            short = start + shortened(vector(upload) - start, self.clip)
            protected = rebuilt(upload, short)
            if isinstance(upload, Changed):
                state = with_slot(state, moved_slot(upload, protected))
            if self.shared:
                std = self.std / math.sqrt(math.ceil(self.shared * (self.active or 1)))
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
        total = torch.stack([self.bounded(reply) for reply in good]).sum(0)
        if not self.shared:
            total = total + self.draw(env, self.std, len(total), [reply.upload for reply in good])
        alike = sum(env.sizes) / env.clients
        means = iter(shared(good, total / len(good), [alike] * len(good)))
        return [reply if reply.error else next(means) for reply in replies]

    def bounded(self, reply: Reply[Any]) -> Tensor:
        """A reply's vector, clipped again: compression may have made it longer, and not every client is honest."""
        numbers = vector(reply.upload)
        if reply.down is None or self.shared:  # with its noise it is longer
            return numbers
        start = origin(reply.upload, reply.down)
        return start + shortened(numbers - start, self.clip)

    def draw(self, env: Env, std: float, count: int, uploads: Sequence[Any]) -> Tensor:
        """Noise for a sum: keyed by all that goes into it, so that other uploads never meet the same noise."""
        key = secrets.token_bytes(32)
        if self.keyed:
            digest = hashlib.blake2b(b"".join(record.dumps(upload) for upload in uploads)).hexdigest()
            key = key_of(env.seed, "private clients", digest, env.round, env.client)
        return gaussian(stream_of(key, "noise"), std, count, not self.keyed)

    def facts(self, env: Env, states: Mapping[int, Any]) -> Mapping[str, Any]:
        """ε that the run has cost every client so far, at δ."""
        return {"epsilon_clients": self.spent(env.round + 1), "delta": self.delta}


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
