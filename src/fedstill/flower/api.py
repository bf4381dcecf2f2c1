"""Flower's private interface: what fedstill needs of it beyond its public packages, all in this file.

Flower promises to keep `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.simulation`. What stands here may move
with a minor version; it is tried with flwr 1.41 and 1.42.
"""

import hashlib
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common import constant, serde
from flwr.proto import control_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2, runtime_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER as PUBLIC_KEY
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER as SIGNATURE
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives import asymmetric
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedstill.core.errors import FedstillError

CHUNK = 5 << 20
"""Bytes of one of Flower's objects, at most."""
HUB = constant.SUPERLINK_NODE_ID
"""The hub's own node number: it answers for nodes that went away."""
MOST_OBJECTS = 1024
"""Objects of a message that a hub takes in at all: 5 GiB of chunks."""
OVERHEAD = 16
"""Objects of a message beside its chunks of data."""


class TooLarge(FedstillError):
    """A message has more bytes, or more objects, than its reader takes."""


class Lost(FedstillError):
    """A message cannot be read any more."""


class TooLate(Exception):
    """The hub no longer takes this answer."""


@dataclass
class Parcel:
    """A message on its way to its reader, object by object, and never more of it than was expected."""

    id: str
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0

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
        while self.missing:
            try:
                content = pull(self.missing[-1])
            except ObjectUnavailableError:
                return False
            except ObjectPullError as error:
                raise Lost(f"it was lost: {error}") from None
            self.contents[self.missing.pop()] = content
            self.size += len(content)
            if self.size > limit:
                raise TooLarge(f"it is larger than {limit >> 20} MiB")
        return True

    def message(self) -> Message:
        """The whole message; whatever is no message is refused."""
        try:
            made = inflate_object_from_contents(self.id, self.contents)
        except Exception as error:  # the bytes are a stranger's: any class of Flower's may stumble over them
            raise FedstillError(f"not a Flower message ({type(error).__name__})") from None
        if not isinstance(made, Message):
            raise FedstillError(f"not a Flower message but a {type(made).__name__}")
        return made


class AppMessages:
    """The messages of a run, as its server app sends and reads them through a `Grid`."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def nodes(self) -> dict[int, tuple[str, str]]:
        """The nodes that are there: the name each one's key was registered under, and since when it is there."""
        return {n.node_id: (n.name, n.last_activated_at) for n in self.grid.get_nodes()}

    def push(self, messages: list[Message]) -> list[str]:
        """Send messages; their numbers, empty where Flower did not take one."""
        return list(self.grid.push_messages(messages))

    def announced(self, asked: list[str], limit: int) -> Iterator[tuple[str, int, Parcel | FedstillError]]:
        """The answers that have come to the messages asked for: that message's number, the sender's node, a parcel."""
        found = self.grid._runtime_client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=asked))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            try:
                parcel: Parcel | FedstillError = Parcel.of(tree, limit)
            except FedstillError as error:
                parcel = error
            yield message.metadata.reply_to_message_id, message.metadata.src_node_id, parcel

    def read(self, parcel: Parcel, limit: int) -> RecordDict | None:
        """An answer's content, or None while some of it is still being sent; an error of the node is raised."""
        client, node, run = self.grid._runtime_client, self.grid.node, self.grid.run.run_id
        if not parcel.fetch(make_pull_object_fn_protobuf(client.PullObject, node, run), limit):
            return None
        client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=parcel.id)
        )
        message = parcel.message()
        if message.has_error():
            if message.error.code == constant.ErrorCode.NODE_UNAVAILABLE:
                raise NodeGone
            reason = str(message.error.reason or "failed")[:200]
            raise FedstillError(f"{reason} (Flower's code {message.error.code})")
        return message.content


class NodeGone(FedstillError):
    """The node went away before it answered."""


@dataclass(frozen=True)
class Incoming:
    """A message for a node: its Flower run, and the parcel it comes in."""

    run: int
    head: Message
    parcel: Parcel | FedstillError


class Fleet(AbstractContextManager["Fleet"]):
    """A node's line to the hub: the Fleet API."""

    def __init__(self, address: str, insecure: bool, root: bytes | None, keys: tuple[Any, Any]) -> None:
        self.public = asymmetric.public_key_to_bytes(keys[1])
        self.client = FleetHttpClient.from_server_address(
            address,
            insecure,
            None if insecure else root,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(*keys)],
        )

    def __exit__(self, *_: object) -> None:
        self.client.__exit__(None, None, None)

    def register(self) -> None:
        """Make this node's key known, where a hub takes any."""
        self.client.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=self.public))

    def activate(self, heartbeat: float) -> int:
        """Enter the hub; the node's number."""
        request = fleet_pb2.ActivateNodeRequest(public_key=self.public, heartbeat_interval=heartbeat)
        return int(self.client.ActivateNode(request).node_id)

    def leave(self, node: int) -> None:
        """Leave the hub."""
        self.client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node))

    def beat(self, node: int, heartbeat: float) -> bool:
        """Give a sign of life; False when the hub does not know this node any more."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=heartbeat)
        return bool(self.client.SendNodeHeartbeat(request).success)

    def look(self, node: int, limit: int) -> Incoming | None:
        """The next message for this node, if there is one."""
        found = self.client.PullMessages(fleet_pb2.PullMessagesRequest(node=Node(node_id=node)))
        if not found.messages_list:
            return None
        head = serde.message_from_proto(found.messages_list[0])
        try:
            parcel: Parcel | FedstillError = Parcel.of(found.message_object_trees[0], limit)
        except FedstillError as error:
            parcel = error
        return Incoming(head.metadata.run_id, head, parcel)

    def fetch(self, node: int, incoming: Incoming, limit: int) -> RecordDict | None:
        """A message's content, or None while some of it is still being sent."""
        if isinstance(incoming.parcel, FedstillError):
            raise incoming.parcel
        me = Node(node_id=node)
        if not incoming.parcel.fetch(make_pull_object_fn_protobuf(self.client.PullObject, me, incoming.run), limit):
            return None
        self.client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(
                node=me, run_id=incoming.run, message_object_id=incoming.parcel.id
            )
        )
        return incoming.parcel.message().content

    def run_is_over(self, node: int, run: int) -> bool:
        """Has the run that a message belongs to ended?"""
        try:
            found = self.client.GetRun(run_pb2.GetRunRequest(node=Node(node_id=node), run_id=run))
        except httpx.HTTPStatusError as error:
            return error.response.status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)
        return bool(found.run.status.status == "finished")

    def answer(self, node: int, incoming: Incoming, content: RecordDict, seconds: float) -> None:
        """Send the answer to a message; `TooLate` when nobody waits for it any more."""
        reply = Message(content, reply_to=incoming.head)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        me = Node(node_id=node)
        try:
            with no_object_id_recompute():
                found = self.client.PushMessages(
                    fleet_pb2.PushMessagesRequest(
                        node=me,
                        messages_list=[serde.message_to_proto(remove_content_from_message(reply))],
                        message_object_trees=[get_object_tree(reply)],
                        clientapp_runtime_list=[seconds],
                    )
                )
                push_objects(
                    get_all_nested_objects(reply),
                    make_push_object_fn_protobuf(self.client.PushObject, me, incoming.run, found.session_id),
                    object_ids_to_push=set(found.objects_to_push),
                )
        except ObjectPushError:
            raise TooLate("an answer came too late") from None
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise
            raise TooLate("the run is over: an answer came too late") from None


@dataclass(frozen=True)
class KnownRun:
    """A run as the hub knows it."""

    id: int
    name: str
    status: str
    result: str
    details: str
    order: Mapping[str, Any]
    """What it was started with."""

    @property
    def over(self) -> bool:
        """Has it ended, well or not?"""
        return self.status == "finished"


class Control:
    """The Control API: starting, stopping and reading runs, registering keys."""

    def __init__(self, address: str, insecure: bool, root: bytes | None, headers: Mapping[str, str]) -> None:
        self.client = ControlHttpClient.from_server_address(
            address,
            insecure,
            root,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Headers(headers)],
        )

    def close(self) -> None:
        """Hang up."""
        self.client.close()

    def register(self, name: str, public: bytes) -> None:
        """Let the node with this key in, under this name."""
        self.client.RegisterNode(control_pb2.RegisterNodeRequest(public_key=public, name=name))

    def start(self, fab: bytes, config: Mapping[str, Any]) -> int | None:
        """Start a run of this bundle; its number."""
        request = control_pb2.StartRunRequest(
            fab=serde.fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=serde.user_config_to_proto(dict(config)),
        )
        found = self.client.StartRun(request)
        return int(found.run_id) if found.HasField("run_id") else None

    def runs(self, run: int | None = None) -> list[KnownRun]:
        """The hub's runs, the newest first, or the one of this number."""
        request = control_pb2.ListRunsRequest(limit=100) if run is None else control_pb2.ListRunsRequest(run_id=run)
        found = self.client.ListRuns(request).run_dict.values()
        return [_known(r) for r in sorted(found, key=lambda r: r.pending_at, reverse=True)]

    def stop(self, run: int) -> None:
        """End a run."""
        self.client.StopRun(control_pb2.StopRunRequest(run_id=run))

    def log(self, run: int) -> Iterator[str]:
        """A run's log from its beginning, piece by piece, as it grows."""
        for piece in self.client.StreamLogs(control_pb2.StreamLogsRequest(run_id=run, after_timestamp=0.0)):
            yield piece.log_output


def _known(run: Any) -> KnownRun:
    order = serde.user_config_from_proto(run.override_config)
    state = run.status
    return KnownRun(run.run_id, str(order.get("run", "")), state.status, state.sub_status, state.details, order)


class _Headers:
    """Adds headers to every request."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Add them."""
        context.request.headers.update(self.headers)
        found: httpx.Response = call_next(context)
        return found


def bundle(project: str) -> bytes:
    """Flower's app bundle around a pyproject.toml; the code is what is installed."""
    content, _ = build_fab_from_files({"pyproject.toml": project.encode()})
    return bytes(content)


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


def pushed_fault(body: bytes) -> str | None:
    """What is wrong with a node's request to send a message; None where it is its own answer to the hub."""
    try:
        request = fleet_pb2.PushMessagesRequest.FromString(body)
    except DecodeError:
        return "not a request that can be read"
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return "one message a request"
    about = request.messages_list[0].metadata
    if about.src_node_id != request.node.node_id or about.dst_node_id != constant.SUPERLINK_NODE_ID:
        return "a message in another's name, or to another site"
    if not about.reply_to_message_id:
        return "a message that answers none"
    objects = sum(1 for _ in islice(iterate_object_tree(request.message_object_trees[0]), MOST_OBJECTS + 1))
    return f"a message of more than {MOST_OBJECTS} objects" if objects > MOST_OBJECTS else None


def started_bundle(body: bytes) -> bytes:
    """The app bundle that a request to start a run brings."""
    return bytes(control_pb2.StartRunRequest.FromString(body).fab.content)


def serve_superlink(words: list[str], around: Callable[[Any], Any], **options: Any) -> None:
    """Run Flower's SuperLink with these command-line words until a signal ends it, `around` its HTTP application."""
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli import flower_superlink as superlink
    from flwr.superlink.main import create_app

    link = sys.modules[superlink.__module__]
    sys.argv = ["flower-superlink", *words]
    config = link._parse_superlink_lifespan_config()
    uvicorn.run(
        app=around(create_app(config, link.SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        access_log=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
        **options,
    )
