"""Connections to the hub: how long they may stay open without saying what they want."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 20.0
"""Seconds from opening a connection, or from the end of an answer, to the end of the next request's head."""
LARGEST_HEAD = 64 << 10
"""Bytes of a request's head."""


class TimedProtocol(H11Protocol):
    """HTTP on a connection that is closed when no whole head of a request comes in time.

    Uvicorn itself waits for ever for the first request, and for one that comes byte by byte: a stranger could keep all
    connections that a hub has.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.waiting: asyncio.TimerHandle | None = None
        self.served: object = None
        """The request of which the head was last seen."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is there: wait for its first head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Bytes are there; the waiting ends only with a whole head."""
        super().data_received(data)
        if self.cycle is not self.served:
            self.served = self.cycle
            if not self.cycle.response_complete:
                self._stop_waiting()

    def on_response_complete(self) -> None:
        """An answer was sent: wait for the next head."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self.waiting = self.loop.call_later(HEAD, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None
