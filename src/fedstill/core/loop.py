"""The one loop: it drives any method over any transport."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fedstill.core.flight import GROUNDED, Arrivals, Flight
from fedstill.core.method import Env, Method, Reply
from fedstill.core.record import fault, sizes
from fedstill.core.shelf import Shelf
from fedstill.core.turn import Wrapper, received


class Transport(Protocol):
    """How a round reaches the clients. It keeps the clients' states between their turns."""

    @property
    def states(self) -> Shelf:
        """What clients keep, by client."""

    @property
    def idle(self) -> bool:
        """Does this process only wait while clients train? It can then examine the round before meanwhile."""

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its download; return the replies in the order of `downs`."""


@dataclass(frozen=True)
class Round:
    """What happened in a round."""

    number: int
    server: Any
    replies: Sequence[Reply[Any]]
    """The replies the server used."""
    missing: Mapping[int, str]
    """Who did not answer, or was refused, and why."""
    bytes: Mapping[str, Mapping[str, int]]
    """`down` and `up`: bytes by field of the message, over all clients of the round."""
    states: Shelf
    """What clients keep after it."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    flight: Flight | None = None
    """Of asynchronous rounds: what is under way after this one."""


def rounds(
    method: Method[Any, Any, Any, Any],
    env: Env,
    transport: Transport,
    sample: Callable[[int], Sequence[int]],
    until: int,
    server: Any = None,
    start: int = 0,
    wrappers: Sequence[Wrapper] = (),
    arrivals: Arrivals | None = None,
    flight: Flight | None = None,
) -> Iterator[Round]:
    """Run the method from round `start` to `until`, yielding each round as it ends.

    `sample` says who starts in a round; `wrappers` are those around every client's turn, innermost first: here their
    server's half is done. Where rounds are asynchronous, `arrivals` says whose replies are used in a round, and
    `flight` what is under way before the first; else a round uses the replies of all who started in it.
    """
    server = method.init_server(env.at(start)) if server is None else server
    for t in range(start, until):
        here = env.at(t)
        began = time.perf_counter()
        downs = downloads(method, here, server, sample(t))
        prepared = time.perf_counter()
        replies = transport.exchange(here, downs) if downs else []
        trained = time.perf_counter()
        if wrappers:
            forms = {k: method.template(env.at(t, k)) for k in downs}
            asked = [replace(r, down=downs[r.client], form=forms[r.client]) for r in replies]
        good, missing = admit(method, here, received(wrappers, here, asked) if wrappers else replies)
        up: list[Mapping[str, int]] = [r.bytes or sizes(r.upload) for r in replies if r.bytes or r.upload is not None]
        if arrivals is not None:
            flight = (flight or GROUNDED).sent(t, downs, good, missing, replies)
            flight, good, missing, up = flight.landed(t, arrivals)
        if good:  # a round nobody answered leaves everything as it was
            server = method.server(here, server, good)
        ended = time.perf_counter()
        counted = {"down": _total(sizes(down) for down in downs.values()), "up": _total(up)}
        spent = {"download": prepared - began, "clients": trained - prepared, "server": ended - trained}
        yield Round(t, server, good, missing, counted, transport.states, spent, flight)


def downloads(method: Method[Any, Any, Any, Any], env: Env, server: Any, clients: Sequence[int]) -> dict[int, Any]:
    """What each of these clients gets in this round: one and the same record where the method says so."""
    if method.one_download and clients:
        return dict.fromkeys(clients, method.download(env, server))
    return {k: method.download(env.at(env.round, k), server) for k in clients}


REFUSED = "refused: "
"""How the reason begins where a reply came, and was not used."""


def admit(
    method: Method[Any, Any, Any, Any], env: Env, replies: Sequence[Reply[Any]]
) -> tuple[list[Reply[Any]], dict[int, str]]:
    """Sort replies into those of the right form and the rest, named with what is wrong."""
    good, missing = [], {}
    for reply in replies:
        wrong = reply.error
        if wrong is None:
            there = env.at(env.round, reply.client)
            wrong = fault(reply.upload, method.template(there)) or method.objection(there, reply.upload)
            wrong = wrong and REFUSED + wrong
        if wrong is None:
            good.append(reply)
        else:
            missing[reply.client] = wrong
    return good, missing


def _total(messages: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The bytes of many messages, by field."""
    total: dict[str, int] = {}
    for fields in messages:
        for name, count in fields.items():
            total[name] = total.get(name, 0) + count
    return total
