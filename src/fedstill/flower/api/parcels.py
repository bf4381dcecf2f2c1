"""Messages that come object by object."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict

from fedstill.core.errors import FedstillError
from fedstill.flower.api.private import inflate_object_from_contents, message_pb2

CHUNK = 5 << 20
"""Bytes of one of Flower's objects, at most."""
OVERHEAD = 16
"""Objects of a message beside its chunks of data."""
TRIED = 64
"""Objects that are asked for in vain in a thorough look; a quick look ends with the first."""
THOROUGH = 1.0
"""Seconds between two thorough looks: objects come in any order, and some may never come."""


class TooLarge(FedstillError):
    """A message has more bytes, or more objects, than its reader takes."""


class Lost(FedstillError):
    """A message cannot be read any more."""


@dataclass
class Parcel:
    """A message on its way to its reader, object by object, and never more of it than was expected."""

    id: str
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    looked: float = 0.0
    """When all missing objects were last asked for."""

    @classmethod
    def of(cls, tree: Any, limit: int) -> "Parcel":
        """The parcel that an object tree announces; refused when it has far too many objects."""
        most = limit // CHUNK + OVERHEAD
        objects: list[str] = []
        for part in objects_of(tree):
            objects.append(part)
            if len(objects) > most:
                raise TooLarge(f"it has more than {most} objects")
        return cls(tree.object_id, objects)

    def fetch(self, pull: Callable[[str], bytes | None], limit: int) -> bool:
        """Read the objects that are there; False while some are still being sent.

        Args:
            pull: gives an object's bytes by its number, None where it has not come yet (see `puller`).
            limit: bytes of the whole message, at most.
        """
        quick = time.monotonic() - self.looked < THOROUGH
        if not quick:
            self.looked = time.monotonic()
        unavailable = 0
        for name in reversed(list(self.missing)):
            content = pull(name)
            if content is None:
                unavailable += 1
                if unavailable == (1 if quick else TRIED):
                    break
                continue
            self.missing.remove(name)
            self.contents[name] = content
            self.size += len(content)
            if self.size > limit:
                raise TooLarge(f"it is larger than {limit >> 20} MiB")
        return not self.missing

    def message(self) -> Message:
        """The whole message; whatever is no message is refused."""
        try:
            made = inflate_object_from_contents(self.id, self.contents)
        except Exception as error:  # the bytes are a stranger's: any class of Flower's may stumble over them
            raise FedstillError(f"not a Flower message ({type(error).__name__})") from None
        if not isinstance(made, Message):
            raise FedstillError(f"not a Flower message but a {type(made).__name__}")
        return made


def objects_of(tree: Any) -> Iterator[str]:
    """The numbers of the objects in an object tree, those inside another one before it."""
    for child in tree.children:
        yield from objects_of(child)
    yield tree.object_id


def puller(ask: Callable[[Any], Any], node: Any, run: int) -> Callable[[str], bytes | None]:
    """What `Parcel.fetch` reads a run's objects with: `ask` is the hub's PullObject, `node` is who reads."""

    def pull(name: str) -> bytes | None:
        answer = ask(message_pb2.PullObjectRequest(node=node, run_id=run, object_id=name))
        if not answer.object_found:
            raise Lost(f"it was lost: the hub has no object {name}")
        return bytes(answer.object_content) if answer.object_available else None

    return pull


def content_of(message: Message) -> RecordDict:
    """A message's content; one without is refused."""
    if not message.has_content():
        raise FedstillError("a Flower message without content")
    return message.content
