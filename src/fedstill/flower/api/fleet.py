"""A node's line to the hub: the Fleet API, from the node's side."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from flwr.app import Message, RecordDict

from fedstill.core.errors import FedstillError
from fedstill.flower.api import private
from fedstill.flower.api.parcels import Lost, Parcel, content_of, puller
from fedstill.flower.api.requests import key_bytes

LARGEST = 16 << 20
"""Bytes of one answer of the hub; Flower sends objects of 5 MiB."""


class TooLate(Exception):
    """The hub does not take this answer, or not any more."""


@dataclass(frozen=True)
class Incoming:
    """A message for a node: its Flower run, and the parcel it comes in."""

    run: int
    head: Message
    parcel: Parcel | FedstillError


class Fleet(AbstractContextManager["Fleet"]):
    """A node's line to the hub: the Fleet API."""

    def __init__(self, address: str, insecure: bool, root: bytes | None, keys: tuple[Any, Any]) -> None:
        self.public = key_bytes(keys[1])
        self.client = private.FleetHttpClient.from_server_address(
            address,
            insecure,
            None if insecure else root,
            interceptors=[
                private.RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                private.NodeAuthHttpInterceptor(*keys),
            ],
        )
        line = private.http_line(self.client)
        line.follow_redirects = False  # a hub must not send a site's answers elsewhere
        line.event_hooks = {"response": [_bound]}

    def __exit__(self, *_: object) -> None:
        self.client.__exit__(None, None, None)

    def _push(self, me: Any, run: int, session: str, name: str, content: bytes) -> None:
        """Send one object of an answer."""
        request = private.message_pb2.PushObjectRequest(
            node=me, run_id=run, object_id=name, object_content=content, session_id=session
        )
        if not self._ask(self.client.PushObject, request).stored:
            raise TooLate("an answer came too late")

    def _ask(self, ask: Callable[[Any], Any], request: Any) -> Any:
        """What the hub answers; an answer of another form is lost, and ends nothing."""
        try:
            return ask(request)
        except ValueError as error:
            raise Lost(f"an answer of the hub that cannot be read ({error})") from None

    def register(self) -> None:
        """Make this node's key known, where a hub takes any."""
        self._ask(self.client.RegisterNode, private.fleet_pb2.RegisterNodeFleetRequest(public_key=self.public))

    def activate(self, heartbeat: float) -> int:
        """Enter the hub; the node's number."""
        request = private.fleet_pb2.ActivateNodeRequest(public_key=self.public, heartbeat_interval=heartbeat)
        return int(self._ask(self.client.ActivateNode, request).node_id)

    def leave(self, node: int) -> None:
        """Leave the hub."""
        self._ask(self.client.DeactivateNode, private.fleet_pb2.DeactivateNodeRequest(node_id=node))

    def beat(self, node: int, heartbeat: float) -> bool:
        """Give a sign of life; False when the hub does not know this node any more."""
        request = private.heartbeat_pb2.SendNodeHeartbeatRequest(
            node=private.Node(node_id=node), heartbeat_interval=heartbeat
        )
        return bool(self._ask(self.client.SendNodeHeartbeat, request).success)

    def look(self, node: int, limit: int) -> Incoming | None:
        """The next message for this node, if there is one."""
        pulled = self._ask(
            self.client.PullMessages, private.fleet_pb2.PullMessagesRequest(node=private.Node(node_id=node))
        )
        if not pulled.messages_list:
            return None
        try:
            head = private.serde.message_from_proto(pulled.messages_list[0])
            tree = pulled.message_object_trees[0]
        except Exception as error:  # the bytes are a stranger's: any class of Flower's may stumble over them
            raise Lost(f"a message that cannot be read ({type(error).__name__})") from None
        try:
            parcel: Parcel | FedstillError = Parcel.of(tree, limit)
        except FedstillError as error:
            parcel = error
        return Incoming(head.metadata.run_id, head, parcel)

    def fetch(self, node: int, incoming: Incoming, limit: int) -> RecordDict | None:
        """A message's content, or None while some of it is still being sent."""
        if isinstance(incoming.parcel, FedstillError):
            raise incoming.parcel
        me = private.Node(node_id=node)
        if not incoming.parcel.fetch(puller(partial(self._ask, self.client.PullObject), me, incoming.run), limit):
            return None
        self._ask(
            self.client.ConfirmMessageReceived,
            private.message_pb2.ConfirmMessageReceivedRequest(
                node=me, run_id=incoming.run, message_object_id=incoming.parcel.id
            ),
        )
        return content_of(incoming.parcel.message())

    def run_is_over(self, node: int, run: int) -> bool:
        """Has the run that a message belongs to ended?"""
        try:
            answer = self._ask(
                self.client.GetRun, private.run_pb2.GetRunRequest(node=private.Node(node_id=node), run_id=run)
            )
        except httpx.HTTPStatusError as error:
            return error.response.status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)
        return bool(answer.run.status.status == "finished")

    def answer(self, node: int, incoming: Incoming, content: RecordDict, seconds: float) -> None:
        """Send the answer to a message; `TooLate` when nobody waits for it any more."""
        reply = Message(content, reply_to=incoming.head)
        head = private.head_to_send(reply)
        me = private.Node(node_id=node)
        try:
            with private.no_object_id_recompute():
                accepted = self._ask(
                    self.client.PushMessages,
                    private.fleet_pb2.PushMessagesRequest(
                        node=me,
                        messages_list=[head],
                        message_object_trees=[private.get_object_tree(reply)],
                        clientapp_runtime_list=[seconds],
                    ),
                )
                private.push_objects(
                    private.get_all_nested_objects(reply),
                    partial(self._push, me, incoming.run, accepted.session_id),
                    object_ids_to_push=set(accepted.objects_to_push),
                )
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                raise TooLate("the hub takes no answer of this size") from None
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise
            raise TooLate("the run is over: an answer came too late") from None


class _Bounded(httpx.SyncByteStream):
    """The pieces of an answer, up to so many bytes."""

    def __init__(self, pieces: Any) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self.pieces:
            size += len(piece)
            if size > LARGEST:
                raise httpx.ReadError(f"an answer of more than {LARGEST >> 20} MiB")
            yield piece

    def close(self) -> None:
        """Read no more."""
        self.pieces.close()


def _bound(response: httpx.Response) -> None:
    """Read no more of an answer than a hub has to say, nor unpack one that was packed to burst here."""
    if "content-encoding" in response.headers:
        raise httpx.DecodingError("a compressed answer")
    response.stream = _Bounded(response.stream)
