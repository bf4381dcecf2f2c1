"""What nodes' requests say, read at the hub's door before Flower sees them; and the keys they are signed with."""

import json
from base64 import b64decode
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedstill.core.errors import FedstillError
from fedstill.flower.api.parcels import objects_of
from fedstill.flower.api.private import FLEET_HTTP_PUBLIC_KEY_HEADER as PUBLIC_KEY
from fedstill.flower.api.private import FLEET_HTTP_SIGNATURE_HEADER as SIGNATURE
from fedstill.flower.api.private import constant, control_pb2, fleet_pb2, serde

MOST_OBJECTS = 1024
"""Objects of a message that a hub takes in at all: 5 GiB of chunks."""
LARGEST = 1 << 20
"""Bytes in which an answer is announced: its objects' names, and who sends it. All of it is stored."""


def new_keys() -> tuple[Any, Any]:
    """A new private and public key of the kind that nodes have."""
    private = ec.generate_private_key(ec.SECP384R1())
    return private, private.public_key()


def key_bytes(public: Any) -> bytes:
    """A public key as Flower knows it."""
    return bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def signing_key(headers: Mapping[bytes, bytes], known: Container[bytes]) -> bytes | None:
    """Which of the known public keys signed a node's request just now; None where none did."""
    try:
        key, signature = (b64decode(headers[name.encode()], validate=True) for name in (PUBLIC_KEY, SIGNATURE))
        if key not in known:
            return None
        stamp = headers[constant.TIMESTAMP_HEADER.encode()].decode("ascii")
        age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        if not -constant.SYSTEM_TIME_TOLERANCE < age < constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE:
            return None
        public = load_pem_public_key(key)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return None
        public.verify(signature, stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        return key
    except (KeyError, ValueError, TypeError, InvalidSignature):
        return None


@dataclass(frozen=True)
class Announced:
    """An answer that a node wants to send: in which run, and to which message."""

    run: int
    question: str


def announced(body: bytes) -> Announced:
    """A node's request to send a message; a `FedstillError` where it is not its own answer to the hub."""
    if len(body) > LARGEST:
        raise FedstillError(f"an announcement of {len(body)} bytes: at most {LARGEST} are read")
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
    if sum(1 for _ in islice(objects_of(request.message_object_trees[0]), MOST_OBJECTS + 1)) > MOST_OBJECTS:
        raise FedstillError(f"a message of more than {MOST_OBJECTS} objects")
    return Announced(about.run_id, about.reply_to_message_id)


def was_taken(response: bytes) -> bool:
    """Did Flower take an announced message, by its response? Then it names the objects that are to follow."""
    try:
        return bool(fleet_pb2.PushMessagesResponse.FromString(response).objects_to_push)
    except DecodeError:
        return False


def started_bundle(body: bytes) -> bytes | None:
    """The app bundle that a request to start a run brings; None where it asks for anything beside bundle and order.

    Flower would fetch an app of another's (`app_spec`) instead of the bundle, or give a run connectors and federations.
    """
    request = control_pb2.StartRunRequest.FromString(body)
    asked = {field.name for field, _ in request.ListFields()}
    return bytes(request.fab.content) if asked <= {"fab", "override_config"} else None


def started_order(body: bytes) -> tuple[str, dict[str, Any]]:
    """The run's name and the experiment that a request to start a run carries."""
    order = serde.user_config_from_proto(control_pb2.StartRunRequest.FromString(body).override_config)
    try:
        return str(order.get("run", "")), dict(json.loads(str(order.get("experiment", "{}"))))
    except (ValueError, TypeError, RecursionError):
        raise FedstillError("an experiment that cannot be read") from None


def stopped_run(body: bytes) -> int | None:
    """The number of the run that a request is to stop; None where it cannot be read."""
    try:
        return int(control_pb2.StopRunRequest.FromString(body).run_id)
    except DecodeError:
        return None
