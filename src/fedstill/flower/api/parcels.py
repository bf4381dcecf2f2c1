"""Messages that come object by object."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)

from fedstill.core.errors import FedstillError

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
        for part in iterate_object_tree(tree):
            objects.append(part.object_id)
            if len(objects) > most:
                raise TooLarge(f"it has more than {most} objects")
        return cls(tree.object_id, objects)

    def fetch(self, pull: Callable[[str], bytes], limit: int) -> bool:
        """Read the objects that are there; False while some are still being sent."""
        quick = time.monotonic() - self.looked < THOROUGH
        if not quick:
            self.looked = time.monotonic()
        unavailable = 0
        for name in reversed(list(self.missing)):
            try:
                content = pull(name)
            except ObjectUnavailableError:
                unavailable += 1
                if unavailable == (1 if quick else TRIED):
                    break
                continue
            except ObjectPullError as error:
                raise Lost(f"it was lost: {error}") from None
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


def content_of(message: Message) -> RecordDict:
    """A message's content; one without is refused."""
    if not message.has_content():
        raise FedstillError("a Flower message without content")
    return message.content
