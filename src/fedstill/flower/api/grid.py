"""A run's messages, as its own process at the hub sends and reads them."""

from collections.abc import Iterator
from typing import Any

from flwr.app import Message, RecordDict

from fedstill.core.errors import FedstillError
from fedstill.flower.api.parcels import Parcel, content_of, puller
from fedstill.flower.api.private import constant, message_pb2, runtime_client, runtime_pb2

HUB = constant.SUPERLINK_NODE_ID
"""The hub's own node number: it answers for nodes that went away."""
EXPIRED = (constant.ErrorCode.MESSAGE_UNAVAILABLE, constant.ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


class NodeGone(FedstillError):
    """The node went away before it answered."""


class Expired(FedstillError):
    """The time in which an answer is taken is over, by the hub's own clock: there will be none."""


class AppMessages:
    """The messages of a run, as its server app sends and reads them through a `Grid`."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    @property
    def client(self) -> Any:
        """Flower's client of the Runtime API; the grid connects it when it is first asked for."""
        return runtime_client(self.grid)

    @property
    def run(self) -> int:
        """The run's number at the hub."""
        return int(self.grid.run.run_id)

    def nodes(self) -> dict[int, tuple[str, str]]:
        """The nodes that are there: the name each one's key was registered under, and since when it is there."""
        return {n.node_id: (n.name, n.last_activated_at) for n in self.grid.get_nodes()}

    def push(self, messages: list[Message]) -> list[str]:
        """Send messages; their numbers, empty where Flower did not take one."""
        return list(self.grid.push_messages(messages))

    def announced(self, asked: list[str], limit: int) -> Iterator[tuple[str, int, Parcel | FedstillError]]:
        """The answers that have come to the messages asked for: that message's number, the sender's node, a parcel."""
        pulled = self.client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=asked))
        for message, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            try:
                parcel: Parcel | FedstillError = Parcel.of(tree, limit)
            except FedstillError as error:
                parcel = error
                self.discard(tree.object_id)
            yield message.metadata.reply_to_message_id, message.metadata.src_node_id, parcel

    def read(self, parcel: Parcel, limit: int) -> RecordDict | None:
        """An answer's content, or None while some of it is still being sent; an error of the node is raised."""
        pull = puller(self.client.PullObject, self.grid.node, self.run)
        try:
            if not parcel.fetch(pull, limit):
                return None
        except FedstillError:
            self.discard(parcel.id)
            raise
        self.discard(parcel.id)
        message = parcel.message()
        if message.has_error():
            if message.error.code == constant.ErrorCode.NODE_UNAVAILABLE:
                raise NodeGone
            if message.error.code in EXPIRED:
                raise Expired
            reason = str(message.error.reason or "failed")[:200]
            raise FedstillError(f"{reason} (Flower's code {message.error.code})")
        return content_of(message)

    def discard(self, message: str) -> None:
        """Let the hub's database forget an answer: one that was read, and one that never will be."""
        self.client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(node=self.grid.node, run_id=self.run, message_object_id=message)
        )
