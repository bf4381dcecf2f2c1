"""The one loop: it drives any method over any transport."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedstill.core import rng
from fedstill.core.method import Env, Method, Reply
from fedstill.core.record import fault, sizes
from fedstill.core.shelf import Shelf


class Attack(Protocol):
    """What a malicious client does to its own turn; the method never learns of it."""

    def data(self, env: Env, data: Any) -> Any:
        """The data it trains on."""

    def upload(self, env: Env, upload: Any, down: Any) -> Any:
        """What it sends instead; `down` is what it was sent."""


@dataclass(frozen=True)
class Party:
    """A client as the transport sees it: its data, and the attack on its turn if it is malicious."""

    data: Any
    attack: Attack | None = None


class Transport(Protocol):
    """How a round reaches the clients. It keeps the clients' states between their turns."""

    states: Shelf

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
    seconds: Mapping[str, float] = field(default_factory=dict)


def rounds(
    method: Method[Any, Any, Any, Any],
    env: Env,
    transport: Transport,
    sample: Callable[[int], Sequence[int]],
    until: int,
    server: Any = None,
    start: int = 0,
) -> Iterator[Round]:
    """Run the method from round `start` to `until`, yielding each round as it ends."""
    server = method.init_server(env.at(start)) if server is None else server
    for t in range(start, until):
        here = env.at(t)
        began = time.perf_counter()
        downs = {k: method.download(env.at(t, k), server) for k in sample(t)}
        sent = time.perf_counter()
        replies = transport.exchange(here, downs)
        trained = time.perf_counter()
        good, missing = admit(method, here, replies)
        if good:  # a round nobody answered leaves everything as it was
            server = method.server(here, server, good)
        ended = time.perf_counter()
        counted = {"down": _total(downs.values()), "up": _total(r.upload for r in replies if r.upload is not None)}
        spent = {"download": sent - began, "clients": trained - sent, "server": ended - trained}
        yield Round(t, server, good, missing, counted, spent)


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


def turn(
    method: Method[Any, Any, Any, Any], env: Env, party: Party, state: Any, down: Any, alone: bool = True
) -> tuple[Any, Any]:
    """One client's turn, wherever it runs: `env.at(round, client)`, its data, its state, its download.

    Methods draw from `env.stream`. Modules that draw from torch's own stream (dropout) find it keyed too, unless other
    turns go on in the same process (`alone` is false): then only they are not repeatable.
    """
    attack = party.attack
    data = party.data if attack is None else attack.data(env, party.data)
    own_stream = rng.seeded(rng.key(env.seed, "torch", env.round, env.client)) if alone else nullcontext()
    with own_stream:
        state = method.init_client(env) if state is None else state
        state, upload = method.client(env, state, down, data)
    return state, upload if attack is None else attack.upload(env, upload, down)


def _total(messages: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for message in messages:
        for name, count in sizes(message).items():
            total[name] = total.get(name, 0) + count
    return total
