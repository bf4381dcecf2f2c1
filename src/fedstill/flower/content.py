"""Our messages as the content of Flower's: a head and perhaps a body, both plain bytes, never a pickle.

What all sites get (the download, models to be examined) travels as one attachment, which Flower stores once however
many sites there are.
"""

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedstill.core.errors import FedstillError

SMALL = 1 << 20
"""Messages up to this size travel as one record, since every record costs a request each way."""


def packed(head: bytes, body: bytes | ArrayRecord | None = None) -> RecordDict:
    """The content of a Flower message with this head and this body (bytes, or an `attachment` made of them)."""
    if isinstance(body, bytes) and len(head) + len(body) > SMALL:
        body = attachment(body)
    if isinstance(body, ArrayRecord) or len(head) > SMALL:
        return RecordDict({"head": attachment(head), **({"body": body} if isinstance(body, ArrayRecord) else {})})
    return RecordDict({"small": ConfigRecord({"head": head, **({} if body is None else {"body": body})})})


def attachment(data: bytes) -> ArrayRecord:
    """Bytes as Flower stores and sends them: in chunks, under their checksum."""
    return ArrayRecord({"record": Array("uint8", (len(data),), "fedstill.record", data)})


def unpacked(content: Any) -> tuple[bytes, bytes | None]:
    """The head and the body in a Flower message's content; anything else is refused."""
    if not isinstance(content, RecordDict):
        raise FedstillError("a Flower message without content")
    small = content.get("small")
    if isinstance(small, ConfigRecord):
        head, body = small.get("head"), small.get("body")
    else:
        head, body = _attached(content.get("head")), _attached(content.get("body"))
    if not isinstance(head, bytes) or not isinstance(body, bytes | None):
        raise FedstillError("a Flower message that is none of fedstill's")
    return head, body


def _attached(content: Any) -> bytes | None:
    """The bytes of an attachment, None where there is none."""
    array = content.get("record") if isinstance(content, ArrayRecord) else None
    return array.data if isinstance(array, Array) else None
