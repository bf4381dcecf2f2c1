"""Replies on their way: what an asynchronous server keeps of clients that it does not wait for.

A client starts from the model of one round, and its reply is used in that round or in a later one. Until then it is in
flight. Everything here is a record, so that a checkpoint holds it and a run that is resumed uses the same replies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Late, Reply
from fedstill.core.record import Carries, State, carried, record, sizes


@dataclass(frozen=True)
class Arrivals:
    """Whose replies the server uses in each round, where these are not all whom it asked in it."""

    clients: Callable[[int], Sequence[int]]
    """Of a round, in the order of arrival; each started in it or earlier, and was not heard since."""
    weight: Callable[[int], float]
    """How much a reply counts that started so many rounds ago."""


@record
class Underway:
    """A client's reply that has not arrived yet; `error` says why there will be none."""

    round: int
    samples: float
    upload: Any
    error: str | None
    seconds: float
    bytes: Mapping[str, int]


@record
class Flight:
    """All replies under way, by client, and the weights that went down in the rounds they started in."""

    replies: Mapping[int, Underway]
    starts: Mapping[int, State]

    def sent(
        self,
        round: int,
        downs: Mapping[int, Any],
        good: Sequence[Reply[Any]],
        missing: Mapping[int, str],
        received: Sequence[Reply[Any]],
    ) -> "Flight":
        """With what the clients of a round will send.

        `downs` are their downloads; `good` the replies that can be used and `missing` the others, with the reason;
        `received` all replies as they left the clients, whose bytes are counted when they arrive.
        """
        if not downs:
            return self
        counted = {r.client: sizes(r.upload) if r.upload is not None else {} for r in received}
        new = {r.client: Underway(round, r.samples, r.upload, None, r.seconds, counted[r.client]) for r in good}
        new |= {k: Underway(round, 0.0, None, why, 0.0, counted.get(k, {})) for k, why in missing.items()}
        start = carried(next(iter(downs.values())), Carries.WEIGHTS)
        return Flight({**self.replies, **new}, {**self.starts, round: start})

    def landed(
        self, round: int, arrivals: Arrivals
    ) -> tuple["Flight", list[Reply[Any]], dict[int, str], list[Mapping[str, int]]]:
        """Without the replies that arrive in this round; these, who has none and why, and the bytes of each."""
        clients = arrivals.clients(round)
        here = {k: self.replies[k] for k in clients}
        left = {k: reply for k, reply in self.replies.items() if k not in here}
        needed = {reply.round for reply in left.values()}
        good = [self._reply(k, reply, round, arrivals) for k, reply in here.items() if reply.error is None]
        missing = {k: reply.error for k, reply in here.items() if reply.error is not None}
        starts = {t: weights for t, weights in self.starts.items() if t in needed}
        return Flight(left, starts), good, missing, [reply.bytes for reply in here.values()]

    def _reply(self, client: int, reply: Underway, round: int, arrivals: Arrivals) -> Reply[Any]:
        steps = round - reply.round
        late = Late(steps, self.starts[reply.round], arrivals.weight(steps)) if steps else None
        return Reply(client, reply.samples, reply.upload, seconds=reply.seconds, late=late)


GROUNDED = Flight({}, {})
"""Nothing is under way."""
