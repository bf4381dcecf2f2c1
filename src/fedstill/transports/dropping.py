"""A transport on which a share of the active clients does not answer: to measure a method without them."""

from collections.abc import Mapping
from typing import Any

from fedstill.core import rng
from fedstill.core.loop import Transport
from fedstill.core.method import Env, Reply
from fedstill.transports.around import Around

DROPPED = "dropped out"
"""The reason that stands in a round for a client that was left out here."""


class Dropping(Around):
    """Passes a round on to another transport, less the clients that drop out of it."""

    def __init__(self, inner: Transport, share: float) -> None:
        super().__init__(inner)
        self.share = share

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Each active client is lost with probability `share`, by a stream of its own."""
        lost = {k for k in downs if rng.numpy_stream(env.seed, "drop", env.round, k).random() < self.share}
        replies = {r.client: r for r in self.inner.exchange(env, {k: d for k, d in downs.items() if k not in lost})}
        return [replies.get(k) or Reply(k, env.sizes[k], None, error=DROPPED) for k in downs]
