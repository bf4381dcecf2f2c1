"""A node that stays warm: it speaks Flower's Fleet API and hands each question to the site's worker.

A stock SuperNode starts a process for every message, imports torch anew, sleeps three seconds between looks, and runs
the code that the hub sends. This one keeps data and models in memory, looks several times a second, and never runs
anything that came over the network: of the hub's app it does not even fetch the bundle.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from fedstill.core.errors import FedstillError, RunError
from fedstill.core.record import write
from fedstill.flower.api.fleet import Fleet, Incoming, TooLate
from fedstill.flower.api.parcels import Lost
from fedstill.flower.api.requests import new_keys
from fedstill.flower.content import packed, unpacked
from fedstill.flower.keys import read_private
from fedstill.flower.messages import readable
from fedstill.flower.worker import Cancelled

HEARTBEAT = 10.0
"""Seconds between signs of life; the hub takes a node for gone after twice as long."""
LOOK, IDLE = 0.25, 1.0
"""Seconds between looks for a message: while a run is going on, and half a minute after the last message."""
STILL_WANTED = 3.0
"""Seconds between asking, during a turn, whether its run still goes on."""
PATIENCE = 8.0
"""The longest pause between two tries to reach the hub."""
UNFINISHED = 600.0
"""Seconds that a message may take to come in."""


class Answers(Protocol):
    """Who answers questions: the site's worker."""

    def __call__(self, head: bytes, body: bytes | None, given_up: Callable[[], bool]) -> tuple[bytes, bytes | None]:
        """The answer's head and body; `Cancelled` when `given_up()` said so first."""

    def refuse(self, why: str) -> bytes:
        """The answer to something that is no question."""


@dataclass(frozen=True)
class Line:
    """How to reach the hub: its address, the authority its certificate must be signed by, this site's key."""

    address: str
    root: bytes | None = None
    key: Path | None = None
    insecure: bool = False


class Gone(Exception):
    """The hub cannot be reached, or has forgotten this node: to be tried again."""


class WarmNode:
    """Connects to the hub, and again when the line breaks, until it is told to stop."""

    def __init__(self, line: Line, state: Path, report: Callable[[str], None], largest: int = 1 << 30) -> None:
        self.line = line
        self.memory = state / "node"
        self.report = report
        self.largest = largest
        self.stopped = threading.Event()
        self.connected = False
        self.entered = False
        """Was it let in once? Then a line that breaks is a hub that went away."""
        self.keys = _keys(line.key)

    def serve(self, answers: Answers) -> None:
        """Answer questions until stopped; being turned away for good raises."""
        pause = 0.5
        while not self.stopped.is_set():
            try:
                with self._fleet() as fleet:
                    node = self._enter(fleet)
                    self.report(f"connected to {self.line.address} as node {node}")
                    pause = 0.5
                    self.connected = self.entered = True
                    self._stay(fleet, node, answers)
            except (Gone, Lost, httpx.HTTPError) as error:
                self.connected = False
                _final(error, self.line, self.entered)
                self.report(f"no line to {self.line.address} ({_brief(error)}); trying again in {pause:g} s")
                self.stopped.wait(pause)
                pause = min(2 * pause, PATIENCE)

    def stop(self) -> None:
        """Leave now; a turn under way is given up."""
        self.stopped.set()

    def _fleet(self) -> Fleet:
        return Fleet(self.line.address, self.line.insecure, self.line.root, self.keys)

    def _enter(self, fleet: Fleet) -> int:
        if self.line.key is None:
            fleet.register()
        known = self._good_bye(fleet)
        try:
            node = fleet.activate(HEARTBEAT)
        except httpx.HTTPStatusError as error:
            if known or error.response.status_code >= 500:
                raise
            raise RunError(
                f"{self.line.address}: the hub turned this site away; "
                "its key is not registered (fedstill hub --allow) or was revoked, or another site uses it"
            ) from None
        write(self.memory, str(node).encode())
        return node

    def _good_bye(self, fleet: Fleet) -> bool:
        """A node killed a moment ago still counts as there, and could not enter: it leaves first. Is it known?"""
        if self.line.key is None or not self.memory.exists():
            return self.line.key is None
        try:
            fleet.leave(int(self.memory.read_text()))
        except ValueError:
            return False
        except httpx.HTTPStatusError as error:
            return bool(error.response.status_code != httpx.codes.UNAUTHORIZED)
        return True

    def _stay(self, fleet: Fleet, node: int, answers: Answers) -> None:
        beat = _Heart(self._fleet, node)
        beat.start()
        last = 0.0
        try:
            while not self.stopped.is_set():
                if beat.stopped.is_set():
                    raise Gone("the hub does not know this node any more")
                if self._look(fleet, node, answers):
                    last = time.monotonic()
                else:
                    self.stopped.wait(LOOK if time.monotonic() - last < 30 else IDLE)
        finally:
            beat.stopped.set()
            if self.stopped.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    fleet.leave(node)

    def _look(self, fleet: Fleet, node: int, answers: Answers) -> bool:
        """Take a message and answer it; False when there is none."""
        incoming = fleet.look(node, self.largest)
        if incoming is None:
            return False
        began = time.monotonic()
        head: bytes
        body: bytes | None = None
        try:
            question = self._question(fleet, node, incoming)
            head, body = answers(*question, self._given_up(fleet, node, incoming.run))
        except Cancelled:
            self.report("a turn was given up: its run is over, or this site is about to stop")
            return True
        except FedstillError as error:
            head = answers.refuse(str(error))
        try:
            fleet.answer(node, incoming, packed(head, body), time.monotonic() - began)
        except TooLate as error:
            self.report(str(error))
        return True

    def _question(self, fleet: Fleet, node: int, incoming: Incoming) -> tuple[bytes, bytes | None]:
        """A message's head and body, as soon as all of it is there."""
        until = time.monotonic() + UNFINISHED
        while (content := fleet.fetch(node, incoming, self.largest)) is None:
            if time.monotonic() > until:
                raise FedstillError(f"a message that was not all there after {UNFINISHED:g} s")
            if self.stopped.wait(LOOK):
                raise Cancelled
        return unpacked(content)

    def _given_up(self, fleet: Fleet, node: int, run: int) -> Callable[[], bool]:
        asked = time.monotonic()

        def given_up() -> bool:
            nonlocal asked
            if self.stopped.is_set():
                return True
            if time.monotonic() - asked < STILL_WANTED:
                return False
            asked = time.monotonic()
            try:
                return fleet.run_is_over(node, run)
            except httpx.HTTPError:
                return False  # a hub that is away may come back before the turn is done

        return given_up


class _Heart(threading.Thread):
    """Signs of life over a line of their own, also while a turn is computed."""

    def __init__(self, line: Callable[[], Fleet], node: int) -> None:
        super().__init__(daemon=True)
        self.line, self.node = line, node
        self.stopped = threading.Event()

    def run(self) -> None:
        """Beat until stopped or unknown to the hub."""
        with self.line() as fleet:
            while not self.stopped.wait(HEARTBEAT / 2):
                try:
                    if not fleet.beat(self.node, HEARTBEAT):
                        self.stopped.set()
                except httpx.HTTPStatusError as error:
                    if error.response.status_code < 500:
                        self.stopped.set()
                except (Lost, httpx.HTTPError):
                    continue


def _keys(file: Path | None) -> Any:
    if file is None:
        return new_keys()
    private = read_private(file)
    return private, private.public_key()


def _final(error: Exception, line: Line, entered: bool) -> None:
    """Raise what will not get better by trying again."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        raise RunError(f"{line.address}: its certificate is not signed by the authority of --ca: {text}") from None
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        raise RunError(f"{line.address}: the hub speaks plain text; --insecure only if you mean it") from None
    if isinstance(error, httpx.RemoteProtocolError) and line.insecure and not entered:
        raise RunError(f"{line.address}: the hub does not take plain text; leave out --insecure") from None
    if isinstance(error, httpx.HTTPStatusError) and line.insecure and error.response.status_code in (401, 403):
        raise RunError(f"{line.address}: the hub takes sites with a registered key only ({_body(error)})") from None


def _body(error: httpx.HTTPStatusError) -> str:
    try:
        return readable(str(error.response.text), 200)
    except httpx.ResponseNotRead:
        return ""


def _brief(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code} {_body(error)}"
    return f"{type(error).__name__}: {error}" if not isinstance(error, FedstillError | Gone) else str(error)
