"""The hub's post: messages to nodes through Flower's grid, answers collected piece by piece."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedstill.core.errors import FedstillError
from fedstill.flower.allowance import allow
from fedstill.flower.api.grid import HUB, AppMessages, Expired, NodeGone
from fedstill.flower.api.parcels import Parcel
from fedstill.flower.audit import AuditLog
from fedstill.flower.content import SMALL, attachment, packed, unpacked

AWAY = "offline"
GONE = "offline since the middle of the round"
INTRODUCTION = "query"
"""The kind of message that asks a node who it is."""


@dataclass
class UnderWay:
    """A message under way: to which node, what has come of its answer so far, and its kind."""

    node: int
    parcel: Parcel | None = None
    kind: str = ""


Collected = tuple[bytes, bytes | None] | FedstillError
"""An answer's head and body, or what was wrong with it."""


class Post:
    """Sends messages to Flower nodes and collects the answers, never more of one than was expected."""

    def __init__(self, grid: Any, runs: Path, audit: AuditLog, run: str = "") -> None:
        self.app = AppMessages(grid)
        self.runs = runs
        self.audit = audit
        self.run = run
        """Its name, for the log."""
        self.names: dict[int, str] = {}
        self.allowed = 0
        self.under_way: dict[str, UnderWay] = {}

    def allow(self, count: int) -> None:
        """From now on answers may have so many bytes."""
        if count > self.allowed:
            self.allowed = count
            allow(self.runs, self.app.run, count)

    def nodes(self) -> dict[int, tuple[str, str]]:
        """The nodes that are there: the name each one's key was registered under, and since when it is there."""
        nodes = self.app.nodes()
        self.names = {node: name or f"node {node}" for node, (name, _) in nodes.items()}
        return nodes

    def send(self, heads: Mapping[int, bytes], body: bytes | None, kind: str, seconds: float, group: str = "") -> None:
        """Send each node its head, all with the same body; an answer is taken for so many seconds."""
        attached = body if body is None or len(body) <= SMALL else attachment(body)
        messages = [
            Message(packed(head, attached), node, kind, ttl=seconds, group_id=group) for node, head in heads.items()
        ]
        sites = [self.names.get(node, str(node)) for node in heads]
        self.audit.write("sent", run=self.run, kind=kind, round=group, sites=sites, bytes=len(body or b""))
        for node, number in zip(heads, self.app.push(messages), strict=True):
            if number:
                self.under_way[number] = UnderWay(node, kind=kind)

    def forget(self) -> None:
        """Stop waiting for whatever has not come, and throw away what came of it; introductions are still welcome."""
        for node in {message.node for message in self.under_way.values() if message.kind != INTRODUCTION}:
            self.drop(node)

    def drop(self, node: int) -> None:
        """Stop waiting for this node."""
        for number in [number for number, message in self.under_way.items() if message.node == node]:
            parcel = self.under_way.pop(number).parcel
            if parcel is not None:
                self.app.discard(parcel.id)

    def collect(self, limit: int) -> Iterator[tuple[int, Collected]]:
        """The answers that have come since the last time; one of more than `limit` bytes is left unread."""
        unanswered = [number for number, message in self.under_way.items() if message.parcel is None]
        if unanswered:
            for number, sender, parcel in self.app.announced(unanswered, limit):
                message = self.under_way.get(number)
                if message is None or sender not in (message.node, HUB):
                    continue  # nobody answers for another
                if isinstance(parcel, FedstillError):
                    del self.under_way[number]
                    yield message.node, FedstillError(f"refused: its answer: {parcel}")
                else:
                    message.parcel = parcel
        for number, message in list(self.under_way.items()):
            if message.parcel is None:
                continue
            try:
                collected = self._read(message.parcel, limit)
            except Expired:  # whoever waits for it knows the time by itself
                del self.under_way[number]
                continue
            if collected is not None:
                del self.under_way[number]
                site = self.names.get(message.node, "")
                self.audit.write("received", run=self.run, site=site, bytes=message.parcel.size)
                yield message.node, collected

    def _read(self, parcel: Parcel, limit: int) -> Collected | None:
        try:
            content = self.app.read(parcel, limit)
            return None if content is None else unpacked(content)
        except NodeGone:
            return FedstillError(GONE)
        except Expired:
            raise
        except FedstillError as error:
            return FedstillError(f"refused: its answer: {error}")
