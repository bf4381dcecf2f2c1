"""Connections that say nothing, or never stop: a stranger gets a while and a few bytes, no more."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the deployed form needs the extra fedstill[flower]")

import uvicorn

from fedstill.flower import lines

WAIT = 0.5


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers a request without reading its body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server as the hub's, with little patience."""
    monkeypatch.setattr(lines, "HEAD", WAIT)
    config = uvicorn.Config(
        application, port=0, http=lines.TimedProtocol, ws="none", lifespan="off", log_level="critical",
        h11_max_incomplete_event_size=lines.LARGEST_HEAD,
    )  # fmt: skip
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield int(listening.getsockname()[1])
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def line(port: int) -> Iterator[socket.socket]:
    """A stranger's connection."""
    with socket.create_connection(("127.0.0.1", port)) as made:
        yield made


def closed(line: socket.socket, drip: bytes = b"") -> bool:
    """Does the other side close, while bytes drip in? Given up after a minute."""
    line.settimeout(0.1)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if drip:
                line.sendall(drip)
            if line.recv(1 << 16) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_a_silent_connection_is_closed(line: socket.socket) -> None:
    assert closed(line)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(line: socket.socket) -> None:
    line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
    assert closed(line, b"a")


def test_a_head_without_end_is_not_kept(line: socket.socket) -> None:
    """Eighteen megabytes of headers against a bound of 64 KiB."""
    line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
    with pytest.raises((ConnectionError, TimeoutError)):
        line.sendall(b"X-More: aaaaaaaa\r\n" * 10**6)


def test_a_body_that_drips_after_the_answer_does_not_keep_the_line(line: socket.socket) -> None:
    line.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    assert closed(line, b"a")


class Clock:
    """An event loop's timers, and what of them is not cancelled; nothing is waited for."""

    def __init__(self) -> None:
        self.waiting: list[SimpleNamespace] = []

    def call_later(self, seconds: float, act: Callable[[], None]) -> Any:
        made = SimpleNamespace(seconds=seconds, act=act, cancel=lambda: self.waiting.remove(made))
        self.waiting.append(made)
        return made


def test_a_line_that_is_used_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer from the opening to the first head, none while a request is answered, a new one from its answer on."""
    for name in ("connection_made", "data_received", "on_response_complete", "connection_lost"):
        monkeypatch.setattr(lines.H11Protocol, name, lambda *given: None)
    monkeypatch.setattr(lines.H11Protocol, "__init__", lambda *given, **named: None)
    line: Any = lines.TimedProtocol()
    line.loop, line.transport, line.cycle = Clock(), SimpleNamespace(abort=lambda: None), None
    timers = line.loop.waiting

    line.connection_made(line.transport)
    (first,) = timers
    assert (first.seconds, first.act) == (lines.HEAD, line.transport.abort)
    line.data_received(b"GET")
    assert timers == [first]  # no whole head yet
    for _ in range(2):
        line.cycle = SimpleNamespace(response_complete=False)
        line.data_received(b"the end of a head")
        assert timers == []
        line.data_received(b"a piece of its body")
        assert timers == []
        line.on_response_complete()
        assert len(timers) == 1
        assert timers != [first]
    line.connection_lost(None)
    assert timers == []
