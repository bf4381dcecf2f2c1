"""What transports share that stand around another one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from fedstill.core.loop import Transport
from fedstill.core.method import Env, Reply
from fedstill.core.shelf import Shelf


class Around(ABC):
    """Passes a round on to the transport inside, which keeps the clients' states."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    @property
    def states(self) -> Shelf:
        """The clients' states, kept by the transport inside."""
        return self.inner.states

    @property
    def idle(self) -> bool:
        """As of the transport inside."""
        return self.inner.idle

    @abstractmethod
    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its download; return the replies in the order of `downs`."""
