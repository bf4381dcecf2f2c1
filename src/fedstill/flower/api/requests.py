"""What nodes' requests say, read at the hub's door before Flower sees them; and the keys they are signed with."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from flwr.common import constant, serde
from flwr.proto import control_pb2, fleet_pb2
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER as PUBLIC_KEY
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER as SIGNATURE
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.primitives import asymmetric
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedstill.core.errors import FedstillError

MOST_OBJECTS = 1024
"""Objects of a message that a hub takes in at all: 5 GiB of chunks."""


def new_keys() -> tuple[Any, Any]:
    """A new private and public key of the kind that nodes have."""
    private, public = asymmetric.generate_key_pairs()
    return private, public


def key_bytes(public: Any) -> bytes:
    """A public key as Flower knows it."""
    return bytes(asymmetric.public_key_to_bytes(public))


def signing_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The public key that signed a node's request just now; None where the signature does not hold."""
    try:
        key, signature = (b64decode(headers[name.encode()], validate=True) for name in (PUBLIC_KEY, SIGNATURE))
        stamp = headers[constant.TIMESTAMP_HEADER.encode()].decode("ascii")
        age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        if not -constant.SYSTEM_TIME_TOLERANCE < age < constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE:
            return None
        return (
            key
            if asymmetric.verify_signature(asymmetric.bytes_to_public_key(key), stamp.encode("ascii"), signature)
            else None
        )
    except (KeyError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class Announced:
    """An answer that a node wants to send: in which run, and to which message."""

    run: int
    question: str


def announced(body: bytes) -> Announced:
    """A node's request to send a message; a `FedstillError` where it is not its own answer to the hub."""
    try:
        request = fleet_pb2.PushMessagesRequest.FromString(body)
    except DecodeError:
        raise FedstillError("not a request that can be read") from None
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise FedstillError("one message a request")
    about = request.messages_list[0].metadata
    if about.src_node_id != request.node.node_id or about.dst_node_id != constant.SUPERLINK_NODE_ID:
        raise FedstillError("a message in another's name, or to another site")
    if not about.reply_to_message_id:
        raise FedstillError("a message that answers none")
    if sum(1 for _ in islice(iterate_object_tree(request.message_object_trees[0]), MOST_OBJECTS + 1)) > MOST_OBJECTS:
        raise FedstillError(f"a message of more than {MOST_OBJECTS} objects")
    return Announced(about.run_id, about.reply_to_message_id)


def was_taken(response: bytes) -> bool:
    """Did Flower take an announced message, by its response? Then it names the objects that are to follow."""
    try:
        return bool(fleet_pb2.PushMessagesResponse.FromString(response).objects_to_push)
    except DecodeError:
        return False


def started_bundle(body: bytes) -> bytes:
    """The app bundle that a request to start a run brings."""
    return bytes(control_pb2.StartRunRequest.FromString(body).fab.content)


def started_order(body: bytes) -> tuple[str, dict[str, Any]]:
    """The run's name and the experiment that a request to start a run carries."""
    order = serde.user_config_from_proto(control_pb2.StartRunRequest.FromString(body).override_config)
    try:
        return str(order.get("run", "")), dict(json.loads(str(order.get("experiment", "{}"))))
    except ValueError:
        return str(order.get("run", "")), {}
