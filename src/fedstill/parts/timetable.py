"""The timetable: who starts and whose reply arrives in each step of the server, in virtual time.

It follows from the seed, the pace and the clients' sizes alone: what clients compute changes nothing in it. Every step
is written into the run as it is made, and a run that is resumed replays what was written.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedstill.core import rng
from fedstill.core.flight import Arrivals
from fedstill.parts.pace import Pace


@dataclass(frozen=True)
class Step:
    """One step of the server."""

    started: tuple[tuple[int, float], ...]
    """The clients that start from the model before it, each with the time at which its reply arrives."""
    arrived: tuple[tuple[int, int], ...]
    """The clients whose replies it uses, in the order of arrival, each with how many steps before it it started."""
    time: float
    """When it was made."""

    def plain(self) -> dict[str, Any]:
        """As a run's line of metrics has it."""
        return {"time": self.time, "started": list(map(list, self.started)), "arrived": list(map(list, self.arrived))}

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Step":
        """From a run's line of metrics."""
        started = tuple((int(client), float(arrives)) for client, arrives in entry["started"])
        arrived = tuple((int(client), int(late)) for client, late in entry["arrived"])
        return cls(started, arrived, float(entry["time"]))


class Timetable:
    """Steps one after the other, each made when it is asked for."""

    def __init__(
        self, pace: Pace, seed: int, sizes: Sequence[int], active: int, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """Of clients with these `sizes`, `active` of which train at the same time; `rows` of a run are replayed."""
        self.pace = pace
        self.seed = seed
        self.sizes = sizes
        self.active = active
        self.usual = fmean(sizes) or 1.0
        self.steps: list[Step] = []
        self.flying: list[tuple[float, int, int]] = []
        """Who is at a turn: when its reply arrives, the client, and the step it started from; a heap."""
        for row in rows:
            self._made(Step.read(row["pace"]))

    @classmethod
    def of(
        cls, pace: Pace | None, seed: int, sizes: Sequence[int], active: int, rows: Iterable[Mapping[str, Any]] = ()
    ) -> "Timetable | None":
        """The timetable, where there is a pace; else a round uses the replies of all who are active in it."""
        return None if pace is None else cls(pace, seed, sizes, active, rows)

    def __getitem__(self, number: int) -> Step:
        """The step that ends round `number`, from 0."""
        while len(self.steps) <= number:
            self._made(self._next())
        return self.steps[number]

    def starting(self, number: int) -> list[int]:
        """Who starts from the model before this step."""
        return sorted(client for client, _ in self[number].started)

    def arriving(self, number: int) -> list[int]:
        """Whose replies the step uses, in the order of arrival."""
        return [client for client, _ in self[number].arrived]

    @property
    def arrivals(self) -> Arrivals | None:
        """What the loop asks for; None where a round uses the replies of all who start in it."""
        return Arrivals(self.arriving, self.pace.weight) if self.pace.overlapping else None

    def _made(self, step: Step) -> None:
        flying = [*self.flying, *((arrives, client, len(self.steps)) for client, arrives in step.started)]
        heard = {client for client, _ in step.arrived}
        self.flying = [entry for entry in flying if entry[1] not in heard]
        heapq.heapify(self.flying)
        self.steps.append(step)

    def _next(self) -> Step:
        number, now = len(self.steps), self.steps[-1].time if self.steps else 0.0
        flying = list(self.flying)
        started: list[tuple[int, float]] = []
        arrived: list[tuple[int, int]] = []
        draws = 0
        while len(arrived) < self.pace.replies(self.active):
            alone = not flying or flying[0][0] > now  # who arrives at the same moment is heard before anybody starts
            if alone and (self.pace.overlapping or not started):
                away = [client for client, _ in arrived] + [client for _, client, _ in flying]
                free = min(self.active - len(flying), len(self.sizes) - len(away))
                for client in draw_clients(self.seed, number, len(self.sizes), free, away, draws):
                    started.append((client, now + self._turn(client, number)))
                    heapq.heappush(flying, (started[-1][1], client, number))
                draws += 1
            now, client, began = heapq.heappop(flying)
            arrived.append((client, number - began))
        return Step(tuple(started), tuple(arrived), now)

    def _turn(self, client: int, number: int) -> float:
        size = self.sizes[client] / self.usual if self.pace.speeds.by_samples else 1.0
        return self.pace.speeds.turn(self.seed, client, number) * size


def draw_clients(
    seed: int, round: int, clients: int, count: int, away: Collection[int] = (), draws: int = 0
) -> list[int]:
    """`count` of the clients that are not away, uniformly, without replacement.

    `draws`: how many draws there were in this round before.

    >>> draw_clients(1, 0, 6, 6, away=[]), draw_clients(1, 0, 6, 3, away=[0, 2, 4])
    ([0, 1, 2, 3, 4, 5], [1, 3, 5])
    """
    where = (round, draws) if draws else (round,)
    places = rng.numpy_stream(seed, "active", *where).choice(clients - len(away), count, replace=False)
    found = sorted(int(place) for place in places)
    for client in sorted(away):  # the n-th of those who are there
        found = [k + 1 if k >= client else k for k in found]
    return found


def most_turns(starting: Callable[[int], Sequence[int]], rounds: int) -> int:
    """The turns of the client that starts most often in so many rounds; `starting` says who does in each."""
    return max(Counter(client for t in range(rounds) for client in starting(t)).values())


def in_flight(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Who is at a turn after these lines of metrics of a run with overlapping rounds."""
    busy: set[int] = set()
    for row in rows:
        step = Step.read(row["pace"])
        busy = (busy | {client for client, _ in step.started}) - {client for client, _ in step.arrived}
    return sorted(busy)
