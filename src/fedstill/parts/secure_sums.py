"""Secure sums around a client's turn: the server learns the sum of what the clients of a round send, and no more.

Numbers become whole numbers (`bits` of them over ±`limit`), are masked as in `parts.secrecy`, summed, and turned back.
In the simulator all parties are in one place: the messages of all phases are made and read as they would be between
machines, with clients that are lost in any phase. Deployed, the hub and the sites play their parts (`flower.sums_hub`,
`flower.sums_site`), and what comes here is the mean already.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedstill.core import rng
from fedstill.core.errors import Abstains, FedstillError, UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, carries, record
from fedstill.core.turn import AnyMethod, Turn, Wrapper, wrappers
from fedstill.core.value import setting
from fedstill.parts.secrecy import PHASES, Member, TooFew, Words, total
from fedstill.parts.sums import counters, not_sums, readable, shared, summing, vector

MOST_MEMBERS = 255
"""Shares of a secret are numbered by one byte."""
LEAST_MEMBERS = 2
"""The sum over one is no secret."""


@dataclass(frozen=True)
class Scale:
    """Real numbers as whole ones: `levels` steps from −limit to limit, for `members` that are to be summed.

    >>> scale = Scale(limit=1.0, members=3)
    >>> whole = scale.whole(np.array([0.5, -0.25]))
    >>> scale.real(whole + whole + whole, 3).round(6).tolist()
    [1.5, -0.75]
    """

    limit: float
    members: int

    @property
    def levels(self) -> int:
        """As many as 32 bits hold for the sum of all members."""
        return (2**32 - 1) // self.members

    @property
    def step(self) -> float:
        """The distance of two neighbouring numbers; rounding errs by half of it at most."""
        return 2 * self.limit / self.levels

    def whole(self, values: NDArray[np.float64]) -> Words:
        """The nearest whole numbers; one beyond the limit is refused."""
        most = float(np.abs(values).max(initial=0.0))
        if not most <= self.limit:
            raise Abstains(f"secure sums: a number of {most:.3g} is beyond ±{self.limit:g}; raise limit")
        return np.rint((values + self.limit) / self.step).astype(np.uint32)

    def real(self, sums: Words, count: int) -> NDArray[np.float64]:
        """The sum of `count` members' numbers."""
        reals: NDArray[np.float64] = sums.astype(np.float64) * self.step - count * self.limit
        return reals


@record
class Masked:
    """What leaves a site: its upload as one vector of whole numbers under masks, and the counter that goes with it."""

    words: Tensor = carries("masked numbers, which tell nothing until all are summed")
    version: int = carries(Carries.VERSION)


@wrappers.register("secure-sums")
@dataclass(frozen=True)
class SecureSums(Wrapper):
    """The server sees sums only: masked uploads, with a threshold below which a round is given up."""

    once = True
    together = True
    threshold: float = setting(2 / 3, gt=0.5, le=1, doc="share of the round's clients that must stay to the end")
    limit: float = setting(32.0, gt=0, doc="largest number that can be sent")
    by_samples: bool | None = setting(
        None, doc="clients count by their samples, or (false) all alike; none: as the method"
    )
    active: int | None = setting(None, ge=1, doc="clients of a round, whose sum 32 bits must hold: the run's")
    lost: tuple[float, ...] = setting(
        (0.0, 0.0, 0.0, 0.0), doc="simulated: probability that a client is lost in each of the four phases"
    )
    apart: bool = setting(False, doc="every client masks on a machine of its own (a deployed run sets it)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.lost) != len(PHASES) or not all(0 <= share <= 1 for share in self.lost):
            raise UsageError(f"lost = {', '.join(map(str, self.lost))}: must be four probabilities, one for each phase")
        if self.apart and any(self.lost):
            raise UsageError(f"lost = {', '.join(map(str, self.lost))}: sites are real; losses can only be simulated")

    def fitted(self, method: AnyMethod) -> AnyMethod:
        """T1's slots go to the clients."""
        return summing(method)

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs a server that uses sums only."""
        return not_sums(method, upload)

    def beside(self, chain: Sequence[Wrapper]) -> str | None:
        """Needs two clients in every round: a sum of one is that client's own upload."""
        if self.active is None or self.active >= LEAST_MEMBERS:
            return None
        return f"active = {self.active}: the sum would be one client's own upload; must be at least {LEAST_MEMBERS}"

    def settled(self, method: AnyMethod, clients: int, active: int, rounds: int, turns: int) -> "SecureSums":
        """Whether clients count by samples is the method's affair."""
        if active > MOST_MEMBERS:
            raise UsageError(f"active = {active}: secure sums are of at most {MOST_MEMBERS} clients")
        alike = method.server_sums != "samples" if self.by_samples is None else not self.by_samples
        return replace(self, by_samples=not alike, active=active)

    def unfit(self, module: nn.Module) -> str | None:
        """Counters are no part of a vector."""
        return counters(module)

    def effects(self, upload: type) -> Mapping[str, str]:
        """Everything but the counter is masked."""
        effect = "masked: the server learns the sum over the round's clients only"
        if self.apart:
            return {"words": effect}
        return {f.name: effect for f in fields(upload) if f.metadata["carries"] is not Carries.VERSION}

    def deployed(self) -> "SecureSums":
        """Every site masks what it sends."""
        return replace(self, apart=True)

    def uploads(self, upload: type) -> type:
        """Deployed, masked numbers leave."""
        return Masked if self.apart else upload

    def needed(self, clients: int) -> int:
        """How many of a round's clients must stay to the end."""
        return max(LEAST_MEMBERS, math.ceil(self.threshold * clients))

    @property
    def scale(self) -> Scale:
        """How numbers become whole, in rounds of as many clients as the run has."""
        assert self.active is not None
        return Scale(self.limit, self.active)

    def words(self, env: Env, client: int, upload: Any) -> Words:
        """A client's vector in whole numbers, counting as much as it is to count."""
        values = self.weight(env, client) * vector(upload).numpy()
        return self.scale.whole(values)

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn; a client that is lost before its vector arrives keeps the state it had."""

        def summed(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            phase = self.phase_lost(env)
            if phase is not None and phase < 3:
                raise Abstains(f"secure sums: lost while {PHASES[phase]}")
            return turn(env, state, down, data)

        return summed

    def phase_lost(self, env: Env) -> int | None:
        """The phase in which this client is lost in this round, by streams of its own; None: it stays."""
        for phase, share in enumerate(self.lost):
            if rng.numpy_stream(env.seed, f"lost in phase {phase}", env.round, env.client).random() < share:
                return phase
        return None

    def received(self, env: Env, replies: Sequence[Reply[Any]]) -> list[Reply[Any]]:
        """All phases among the round's clients; then every reply gets the mean. Too few are left: nobody is heard."""
        if self.apart:  # the hub has summed already
            return list(replies)
        replies = readable(replies)
        good = [reply for reply in replies if reply.error is None]
        if not good:
            return replies
        phases = {reply.client: self.phase_lost(env.at(env.round, reply.client)) for reply in replies}
        begun = [r.client for r in replies if r.error is None or phases[r.client] is not None]
        try:
            words = {r.client: self.words(env, r.client, r.upload) for r in good}
            sums = meeting(words, begun, phases, self.needed(len(replies)), self.scale)
        except FedstillError as error:
            return given_up(replies, str(error))
        return self.opened_sum(env, replies, sums)

    def opened_sum(self, env: Env, replies: Sequence[Reply[Any]], total: NDArray[np.float64]) -> list[Reply[Any]]:
        """The replies, those without an error with the mean that this sum of theirs gives."""
        good = [reply for reply in replies if reply.error is None]
        mean = torch.from_numpy(total / sum(self.weight(env, reply.client) for reply in good))
        counts = [reply.samples if self.by_samples else sum(env.sizes) / env.clients for reply in good]
        means = iter(shared(good, mean, counts))
        return [reply if reply.error else next(means) for reply in replies]

    def weight(self, env: Env, client: int) -> float:
        """How much a client counts in the sum, at most 1."""
        return env.sizes[client] / max(env.sizes) if self.by_samples else 1.0

    def facts(self, env: Env, states: Mapping[int, Any], heard: Collection[int]) -> Mapping[str, Any]:
        """How far the mean can be from the exact one: half a step for each client, over their weights."""
        weights = sum(self.weight(env, client) for client in heard)
        if not weights:
            return {}
        return {"sum_error": len(heard) * self.scale.step / 2 / weights}


def given_up(replies: Sequence[Reply[Any]], why: str) -> list[Reply[Any]]:
    """The replies of a round in which too few clients stayed: each with the error `why`, and none is used."""
    text = f"secure sums: {why}; the round is given up"
    return [replace(reply, upload=None, error=reply.error or text) for reply in replies]


def meeting(
    vectors: Mapping[int, Words],
    begun: Sequence[int],
    phases: Mapping[int, int | None],
    threshold: int,
    scale: Scale,
) -> NDArray[np.float64]:
    """One round of the protocol, message by message; the sum of the vectors that arrived.

    Args:
        vectors: by client, what is to be summed, in whole numbers; of clients lost before phase 3 none is needed.
        begun: the clients that take part at first.
        phases: by client, the phase in which it is lost, or None.
        threshold: how many must stay.
        scale: how numbers become whole.
    """

    def left(phase: int) -> list[int]:
        here = [k for k in begun if (lost := phases.get(k)) is None or lost > phase]
        if len(here) < threshold:
            raise TooFew(f"only {len(here)} clients were left after {PHASES[phase]}, {threshold} are needed")
        return here

    members = {k: Member(k, threshold) for k in begun}
    keys = {k: members[k].public() for k in left(0)}
    letters = {k: members[k].shares(keys) for k in left(1)}
    arrived = {}
    for k in left(2):
        for_k = {sender: by_receiver[k] for sender, by_receiver in letters.items() if sender != k}
        arrived[k] = members[k].masked(for_k, vectors[k])
    lost = set(letters) - set(arrived)
    revealed = [members[k].unmask(list(arrived), lost) for k in left(3)]
    return scale.real(total(arrived, list(letters), keys, revealed, threshold), len(arrived))
