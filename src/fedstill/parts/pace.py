"""Pace: whether the server waits for all whom it asked, and how fast clients are.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation.
AISTATS 2022 (FedBuff). Clients train at the same time, each at a simulated speed of its own, and the server steps as
soon as a buffer of replies is full; a late reply counts less. Time is virtual: it is reckoned, never waited for.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedstill.core import rng
from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.core.record import Carries, field_carrying
from fedstill.core.registry import Registry
from fedstill.core.turn import AnyMethod, Wrapper
from fedstill.core.value import Value, plain, setting
from fedstill.parts.collusion import Collusion
from fedstill.parts.gather import Chain, gather_of


@dataclass(frozen=True)
class Speeds(Value, ABC):
    """How long clients' turns take, in virtual time."""

    by_samples: bool = setting(False, doc="a turn also takes the longer the more samples a client has")

    @abstractmethod
    def turn(self, seed: int, client: int, round: int) -> float:
        """How long a client's turn takes that starts in this round, were all clients of the same size."""


speeds: Registry[Speeds] = Registry("speeds", Speeds)


@speeds.register("equal")
@dataclass(frozen=True)
class Equal(Speeds):
    """Every turn takes 1."""

    def turn(self, seed: int, client: int, round: int) -> float:
        """1."""
        return 1.0


@speeds.register("log-normal")
@dataclass(frozen=True)
class LogNormal(Speeds):
    """A client's turns take exp(σ z), z drawn once for each client from a normal distribution: the median takes 1."""

    sigma: float = setting(
        1.0, ge=0, doc="how far clients differ (σ); at 1 one in six takes e times as long, or longer"
    )
    jitter: float = setting(0.0, ge=0, doc="how far a client's own turns differ, in the same measure")

    def turn(self, seed: int, client: int, round: int) -> float:
        """exp(σ z_k + jitter z_{k,t})."""
        own = rng.numpy_stream(seed, "speed", client).lognormal(0.0, self.sigma)
        return float(own * rng.numpy_stream(seed, "speed", client, round).lognormal(0.0, self.jitter))


@speeds.register("given")
@dataclass(frozen=True)
class Given(Speeds):
    """Each client's turns take what is said here, in a unit of one's own: measured at its site, say."""

    turns: tuple[float, ...] = setting((), doc="how long a turn takes, client by client")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.turns or not all(0 < length < float("inf") for length in self.turns):
            raise UsageError(f"turns = {self.turns}: must be a number > 0 for each client")

    def turn(self, seed: int, client: int, round: int) -> float:
        """The client's own."""
        return self.turns[client]


@dataclass(frozen=True)
class Pace(Value, ABC):
    """When the server steps. Every step's virtual time is recorded with the round."""

    overlapping: ClassVar[bool] = False
    """True where clients start while others are still at their turns."""
    speeds: Speeds = setting(LogNormal(), doc="how long clients' turns take")

    def misfit(
        self, method: AnyMethod, wrappers: Sequence[Wrapper], attack: Wrapper | None, clients: int
    ) -> str | None:
        """Why an experiment with these cannot have this pace; None if it can."""
        if isinstance(self.speeds, Given) and len(self.speeds.turns) != clients:
            return f"speeds.turns has {len(self.speeds.turns)} entries for {clients} clients"
        return None

    def replies(self, active: int) -> int:
        """How many replies make a step, where so many clients train at the same time."""
        return active

    def weight(self, steps: int) -> float:
        """How much a reply counts that is so many steps late."""
        return 1.0


paces: Registry[Pace] = Registry("pace", Pace)


@paces.register("sync")
@dataclass(frozen=True)
class Sync(Pace):
    """A round waits for the slowest of its clients: the usual rounds, with a clock."""


@paces.register("async")
@dataclass(frozen=True)
class Async(Pace):
    """FedBuff: `active` clients train at the same time; the server steps when `buffer` replies are there.

    A client whose reply is in the buffer starts again after the step, and whoever else is idle takes its place.
    """

    overlapping = True
    buffer: int | None = setting(None, ge=1, doc="replies that make a step (default: half of the active clients)")
    staleness: float = setting(
        0.5, ge=0, doc="a reply τ steps late moves the model (1 + τ)^−staleness as far; 0: as far as any"
    )

    def misfit(
        self, method: AnyMethod, wrappers: Sequence[Wrapper], attack: Wrapper | None, clients: int
    ) -> str | None:
        """Needs a server that can use late replies, and nothing that must see a whole round's replies together."""
        if not method.late_replies:
            return f"{plain(method)['name']} cannot use late replies; these methods can: {', '.join(patient())}"
        if not method.one_download or field_carrying(method.downloads(), Carries.WEIGHTS) is None:
            return "late replies need one and the same download for all clients, with the weights they start from"
        gather = gather_of(method)
        for part in gather.gathers if isinstance(gather, Chain) else () if gather is None else (gather,):
            if not part.late_replies:
                return f"gather = {plain(part)['name']} compares replies that started from the same model"
        for wrapper in wrappers:
            if wrapper.together:
                return f"wrappers: {plain(wrapper)['name']} reads the replies of one round together"
        if isinstance(attack, Collusion):
            return f"attack = {plain(attack)['name']}: its attackers know the updates of one round"
        if self.buffer is not None and self.buffer > clients:
            return f"buffer = {self.buffer}: there are only {clients} clients"
        return super().misfit(method, wrappers, attack, clients)

    def replies(self, active: int) -> int:
        """`buffer`, or half of the active clients."""
        return max(1, active // 2) if self.buffer is None else self.buffer

    def weight(self, steps: int) -> float:
        """(1 + τ)^−staleness.

        >>> Async().weight(0), Async().weight(3), Async(staleness=0).weight(3)
        (1.0, 0.5, 1.0)
        """
        return float((1 + steps) ** -self.staleness)


def patient() -> list[str]:
    """The registered methods that can use late replies."""
    return sorted(name for name, cls in methods.usable() if cls.late_replies)
