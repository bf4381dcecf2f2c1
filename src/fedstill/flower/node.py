"""A SuperNode that stays warm: it speaks Flower's Fleet API and answers letters in its own process.

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
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedstill.core.errors import FedstillError, RunError, UsageError
from fedstill.core.record import write
from fedstill.flower.transport import packed, unpacked

HEARTBEAT = 10.0
"""Seconds between signs of life; the hub takes a node for gone after twice as long."""
LOOK, IDLE = 0.25, 1.0
"""Seconds between looks for a letter: while a run is going on, and half a minute after the last letter."""
PATIENCE = 8.0
"""The longest pause between two tries to reach the hub."""

Answer = Callable[[bytes, bytes | None], bytes]


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

    def __init__(self, line: Line, state: Path, say: Callable[[str], None]) -> None:
        self.line = line
        self.memory = state / "node"
        self.say = say
        self.stopped = threading.Event()
        self.keys = _keys(line.key)

    def serve(self, answer: Answer) -> None:
        """Answer letters until stopped; being turned away for good raises."""
        pause = 0.5
        while not self.stopped.is_set():
            try:
                with _client(self.line, self.keys) as client:
                    node = self._enter(client)
                    self.say(f"connected to {self.line.address} as node {node.node_id}")
                    pause = 0.5
                    self._stay(client, node, answer)
            except (Gone, httpx.TransportError, httpx.HTTPStatusError) as error:
                _final(error, self.line)
                self.say(f"no line to {self.line.address} ({_brief(error)}); trying again in {pause:g} s")
                self.stopped.wait(pause)
                pause = min(2 * pause, PATIENCE)

    def stop(self) -> None:
        """Leave after the letter under way."""
        self.stopped.set()

    def _enter(self, client: FleetHttpClient) -> Node:
        public = public_key_to_bytes(self.keys[1])
        if self.line.key is None:
            client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
        known = self._good_bye(client)
        try:
            found = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT))
        except httpx.HTTPStatusError as error:
            if known or error.response.status_code >= 500:
                raise
            raise RunError(
                f"{self.line.address}: the hub turned this site away; "
                "its key is not registered (fedstill hub --allow), or another site uses it"
            ) from None
        write(self.memory, str(found.node_id).encode())
        return Node(node_id=found.node_id)

    def _good_bye(self, client: FleetHttpClient) -> bool:
        """A node killed a moment ago still counts as there, and could not enter: it leaves first. Is it known?"""
        if self.line.key is None or not self.memory.exists():
            return self.line.key is None
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=int(self.memory.read_text())))
        except ValueError:
            return False
        except httpx.HTTPStatusError as error:
            return bool(error.response.status_code != httpx.codes.UNAUTHORIZED)
        return True

    def _stay(self, client: FleetHttpClient, node: Node, answer: Answer) -> None:
        beat = _Heart(self.line, self.keys, node)
        beat.start()
        last = 0.0
        try:
            while not self.stopped.is_set():
                if beat.stopped.is_set():
                    raise Gone("the hub does not know this node any more")
                if self._look(client, node, answer):
                    last = time.monotonic()
                else:
                    self.stopped.wait(LOOK if time.monotonic() - last < 30 else IDLE)
        finally:
            beat.stopped.set()
            if self.stopped.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))

    def _look(self, client: FleetHttpClient, node: Node, answer: Answer) -> bool:
        """Take a letter and answer it; False when there is none."""
        found = client.PullMessages(PullMessagesRequest(node=node))
        if not found.messages_list:
            return False
        head = message_from_proto(found.messages_list[0])
        run, tree = head.metadata.run_id, found.message_object_trees[0]
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(client.PullObject, node, run),
            make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        began = time.monotonic()
        reply = Message(packed(answer(*unpacked(message.content))), reply_to=message)
        try:
            self._send(client, node, run, reply, time.monotonic() - began)
        except ObjectPushError:
            self.say("an answer came too late")
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise
            self.say("the run is over: an answer came too late")
        return True

    def _send(self, client: FleetHttpClient, node: Node, run: int, reply: Message, spent: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            found = client.PushMessages(
                PushMessagesRequest(
                    node=node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[spent],
                )
            )
            push_objects(
                get_all_nested_objects(reply),
                make_push_object_fn_protobuf(client.PushObject, node, run, found.session_id),
                object_ids_to_push=set(found.objects_to_push),
            )


class _Heart(threading.Thread):
    """Signs of life over a line of their own, also while a turn is computed."""

    def __init__(self, line: Line, keys: Any, node: Node) -> None:
        super().__init__(daemon=True)
        self.line, self.keys, self.node = line, keys, node
        self.stopped = threading.Event()

    def run(self) -> None:
        """Beat until stopped or unknown to the hub."""
        with _client(self.line, self.keys) as client:
            while not self.stopped.wait(HEARTBEAT / 2):
                try:
                    known = client.SendNodeHeartbeat(
                        SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
                    )
                    if not known.success:
                        self.stopped.set()
                except httpx.TransportError:
                    continue
                except httpx.HTTPStatusError as error:
                    if error.response.status_code < 500:
                        self.stopped.set()


def _client(line: Line, keys: Any) -> FleetHttpClient:
    return FleetHttpClient.from_server_address(
        line.address,
        line.insecure,
        None if line.insecure else line.root,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(*keys)],
    )


def _keys(file: Path | None) -> Any:
    if file is None:
        return generate_key_pairs()
    try:
        private = load_ssh_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise UsageError(f"{file}: no such key; make one with: fedstill keys {file}") from None
    except ValueError as error:
        raise UsageError(f"{file}: not a private key ({error})") from None
    return private, private.public_key()


def _final(error: Exception, line: Line) -> None:
    """Raise what will not get better by trying again."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        raise RunError(f"{line.address}: its certificate is not signed by the authority of --ca: {text}") from None
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        raise RunError(f"{line.address}: the hub speaks plain text; --insecure only if you mean it") from None
    if isinstance(error, httpx.RemoteProtocolError) and line.insecure:
        raise RunError(f"{line.address}: the hub does not take plain text; leave out --insecure") from None
    if isinstance(error, httpx.HTTPStatusError) and line.insecure and error.response.status_code in (401, 403):
        raise RunError(
            f"{line.address}: the hub takes sites with a registered key only ({_body(error)[:200]})"
        ) from None


def _body(error: httpx.HTTPStatusError) -> str:
    try:
        return str(error.response.text)
    except httpx.ResponseNotRead:
        return ""


def _brief(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code} {_body(error)[:200]}"
    return f"{type(error).__name__}: {error}" if not isinstance(error, FedstillError | Gone) else str(error)
