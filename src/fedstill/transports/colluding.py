"""A transport on which some clients know of each other: what they send is replaced when everybody's replies are in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedstill.core.loop import Transport
from fedstill.core.method import Env, Reply
from fedstill.transports.around import Around

Conspire = Callable[[Env, Mapping[int, Any], Sequence[Reply[Any]]], list[Reply[Any]]]
"""Environment, downloads and honest replies of a round in; the replies that the server gets out."""


class Colluding(Around):
    """Passes a round on to another transport, and its replies through the attackers' hands."""

    def __init__(self, inner: Transport, conspire: Conspire) -> None:
        super().__init__(inner)
        self.conspire = conspire

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Everybody's honest replies, some of them replaced."""
        return self.conspire(env, downs, self.inner.exchange(env, downs))
