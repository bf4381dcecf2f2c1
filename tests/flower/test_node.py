"""A site's line to a hub that sends whatever it likes: the site goes on, and answers the next question."""

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from federation import Answers

pytest.importorskip("flwr", reason="the deployed form needs the extra fedstill[flower]")

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common import serde
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedstill.core.errors import RunError
from fedstill.flower.api import fleet as fleets
from fedstill.flower.api.fleet import Fleet
from fedstill.flower.content import packed, unpacked
from fedstill.flower.node import Line, WarmNode

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PATHS = "/v1/fleet/"


class RogueHub(httpx.BaseTransport):
    """Speaks Flower's Fleet API from a list of messages, given out one by one; what comes back is kept."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = list(messages)
        self.objects: dict[str, bytes] = {}
        self.heads: list[bytes] = []
        self.spoil: Callable[[str], httpx.Response | None] = lambda path: None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix(PATHS)
        spoilt = self.spoil(path)
        if spoilt is not None:
            return spoilt
        made = self.said(path, request.read())
        return httpx.Response(200, content=made.SerializeToString())

    def said(self, path: str, body: bytes) -> Any:
        match path:
            case "activate-node":
                return fleet_pb2.ActivateNodeResponse(node_id=7)
            case "send-node-heartbeat":
                return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)
            case "pull-messages":
                return self.next()
            case "pull-object":
                asked = message_pb2.PullObjectRequest.FromString(body)
                content = self.objects.get(asked.object_id)
                return message_pb2.PullObjectResponse(
                    object_found=content is not None, object_available=True, object_content=content or b""
                )
            case "push-messages":
                tree = fleet_pb2.PushMessagesRequest.FromString(body).message_object_trees[0]
                return fleet_pb2.PushMessagesResponse(objects_to_push=list(_ids(tree)))
            case "push-object":
                self.heads.append(message_pb2.PushObjectRequest.FromString(body).object_content)
                return message_pb2.PushObjectResponse(stored=True)
            case "get-run":
                return run_pb2.GetRunResponse()
        return message_pb2.ConfirmMessageReceivedResponse()

    def next(self) -> Any:
        if not self.messages:
            return fleet_pb2.PullMessagesResponse()
        message = self.messages.pop(0)
        if not isinstance(message, Message):
            return message
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        return fleet_pb2.PullMessagesResponse(
            messages_list=[serde.message_to_proto(message)], message_object_trees=[get_object_tree(message)]
        )


def _ids(tree: Any) -> Iterator[str]:
    yield tree.object_id
    for child in tree.children:
        yield from _ids(child)


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks for the run that a process belongs to when it makes a message."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 5)


def asked(content: RecordDict) -> Message:
    return Message(content, 7, "train")


def served(hub: RogueHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """Run a site on this hub until it has answered a good question, put last; the heads that it was given."""
    hub.messages.append(asked(packed(b"good")))
    given: list[bytes] = []
    done = threading.Event()

    def answer(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        given.append(head)
        if head == b"good":
            done.set()
        return b"answer", None

    def lined(*args: Any, **named: Any) -> Any:
        made = real(*args, **named)
        made.client._client.close()
        made.client._client = httpx.Client(
            transport=hub, follow_redirects=False, event_hooks={"response": [fleets._bound]}
        )
        return made

    real = Fleet
    monkeypatch.setattr("fedstill.flower.node.Fleet", lined)
    monkeypatch.setattr("fedstill.flower.node.LOOK", 0.001)
    monkeypatch.setattr("fedstill.flower.node.PATIENCE", 0.01)
    node = WarmNode(Line("hub.example:1", insecure=True), tmp_path, lambda text: None)
    ended: list[BaseException] = []

    def life() -> None:
        try:
            node.serve(Answers("site-a", answer))
        except BaseException as error:
            ended.append(error)
            done.set()

    thread = threading.Thread(target=life, daemon=True)
    thread.start()
    assert done.wait(600), "the site hangs"
    node.stop()
    thread.join(20)
    assert ended == []
    return given


def foreign() -> list[Any]:
    """Messages that are none of fedstill's: of other apps, without content, errors, not even messages."""
    good = asked(packed(b"x"))
    bare = serde.message_to_proto(good)
    wide = ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id=f"{i:064d}") for i in range(5000)])
    other_root = RecordDict({"small": ConfigRecord({"head": b"x"})})
    return [
        asked(RecordDict()),
        asked(RecordDict({"parameters": ArrayRecord()})),
        asked(RecordDict({"config": ConfigRecord({"lr": 0.1}), "metrics": MetricRecord({"loss": 1.0})})),
        asked(RecordDict({"small": ConfigRecord({"head": "text"})})),
        asked(RecordDict({"small": ConfigRecord({"body": b"x"})})),
        asked(RecordDict({"head": ConfigRecord({"head": b"x"})})),
        Message(Error(code=0, reason="[/b]\x1b[31m"), reply_to=asked(packed(b"x"))),
        fleet_pb2.PullMessagesResponse(messages_list=[bare]),
        fleet_pb2.PullMessagesResponse(messages_list=[bare], message_object_trees=[ObjectTree(object_id="x")]),
        fleet_pb2.PullMessagesResponse(messages_list=[bare], message_object_trees=[wide]),
        fleet_pb2.PullMessagesResponse(
            messages_list=[bare], message_object_trees=[ObjectTree(object_id=other_root.object_id)]
        ),
        fleet_pb2.PullMessagesResponse(messages_list=[message_pb2.Message()], message_object_trees=[ObjectTree()]),
    ]


def test_messages_of_other_apps_end_no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Twelve kinds of message that no fedstill hub sends, then a good one: only that one reaches the worker."""
    hub = RogueHub(foreign())
    root = RecordDict({"small": ConfigRecord({"head": b"x"})})
    hub.objects[root.object_id] = root.deflate()  # a root that is no message
    assert served(hub, monkeypatch, tmp_path) == [b"good"]
    refusals = [head for head in hub.heads if b"refusal" in head]
    assert len(refusals) >= 8  # whatever could be answered was answered


@pytest.mark.parametrize("path", ["pull-messages", "pull-object", "push-messages", "activate-node", "push-object"])
@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(lambda: httpx.Response(200, content=b"\xff" * 50), id="no protobuf"),
        pytest.param(lambda: httpx.Response(500), id="500"),
        pytest.param(lambda: httpx.Response(307, headers={"location": "http://intranet.example/"}), id="elsewhere"),
        pytest.param(
            lambda: httpx.Response(
                200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(gzip.compress(b"\0" * (1 << 24)))
            ),
            id="packed",
        ),
        pytest.param(lambda: httpx.Response(200, stream=Endless()), id="endless"),
    ],
)
def test_answers_of_any_other_form_are_tried_again(
    path: str, spoilt: Callable[[], httpx.Response], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of the hub's answers spoilt once: the site tries again, goes nowhere else, keeps nothing endless."""
    hub = RogueHub([asked(packed(b"before"))])
    once = [path]

    def spoil(asked: str) -> httpx.Response | None:
        return spoilt() if once and asked == once[0] and once.pop() else None

    hub.spoil = spoil
    assert served(hub, monkeypatch, tmp_path)[-1] == b"good"
    assert once == []
    assert Endless.most <= fleets.LARGEST + (1 << 20)


class Endless(httpx.SyncByteStream):
    """An answer without end; remembers how much of it was taken."""

    most = 0

    def __iter__(self) -> Iterator[bytes]:
        taken = 0
        while True:
            taken += 1 << 20
            Endless.most = max(Endless.most, taken)
            yield b"\0" * (1 << 20)


def test_a_message_comes_back_as_it_was_sent() -> None:
    for head, body in ((b"x", None), (b"x", b"y"), (b"x", b"y" * (2 << 20))):
        assert unpacked(packed(head, body)) == (head, body)


def test_a_hub_that_turns_a_site_away_ends_it_with_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = RogueHub([])
    hub.spoil = lambda path: httpx.Response(401) if path == "activate-node" else None
    with pytest.raises((RunError, AssertionError), match=r"takes sites with a registered key|RunError"):
        served(hub, monkeypatch, tmp_path)


def test_nobody_answers_for_another(tmp_path: Path) -> None:
    """Node 7 was asked: what node 8 sends in answer is not taken for it, what node 7 sends is."""
    from fedstill.flower.api.parcels import Parcel
    from fedstill.flower.audit import AuditLog
    from fedstill.flower.content import packed
    from fedstill.flower.post import Post, UnderWay

    class Coming:
        sender = 8

        def announced(self, asked: list[str], limit: int) -> Any:
            return [(number, self.sender, Parcel("x", [])) for number in asked]

        def read(self, parcel: Parcel, limit: int) -> Any:
            return packed(b"head")

    post, app = Post(None, tmp_path, AuditLog(tmp_path / "audit.jsonl")), Coming()
    post.app = app  # type: ignore[assignment]
    post.under_way = {"question": UnderWay(7)}
    assert list(post.collect(100)) == []
    app.sender = 7
    assert list(post.collect(100)) == [(7, (b"head", None))]


def test_a_question_whose_time_is_over_is_nobodys_failure(tmp_path: Path) -> None:
    """Flower says of a question that was not answered in time that it is not there: that is no answer of the site's."""
    from flwr.common.constant import ErrorCode

    from fedstill.flower.audit import AuditLog
    from fedstill.flower.post import Post, UnderWay

    runtime = SimpleNamespace(PullObject=None, ConfirmMessageReceived=lambda request: None)
    grid = SimpleNamespace(_runtime_client=runtime, node=None, run=SimpleNamespace(run_id=1))
    post = Post(grid, tmp_path, AuditLog(tmp_path / "audit.jsonl"))
    for code, found in ((ErrorCode.MESSAGE_UNAVAILABLE, []), (ErrorCode.NODE_UNAVAILABLE, ["offline since"])):
        said = SimpleNamespace(has_error=lambda: True, error=Error(code))
        parcel: Any = SimpleNamespace(id="", size=0, fetch=lambda pull, limit: True, message=lambda said=said: said)
        post.under_way = {"question": UnderWay(7, parcel)}
        assert [str(why)[:13] for _, why in post.collect(100)] == found
        assert post.under_way == {}


def test_a_parcel_has_no_more_objects_and_bytes_than_its_reader_takes() -> None:
    """Of 8 MiB there are at most one whole chunk of 5 MiB and 16 objects beside; reading ends with the ninth MiB."""
    from fedstill.core.errors import FedstillError
    from fedstill.flower.api.parcels import Parcel

    def tree(objects: int) -> ObjectTree:
        return ObjectTree(object_id="root", children=[ObjectTree(object_id=str(i)) for i in range(objects)])

    limit, pulled = 8 << 20, list[str]()
    with pytest.raises(FedstillError, match="it has more than 17 objects"):
        Parcel.of(tree(20_000), limit)
    parcel = Parcel.of(tree(16), limit)

    def pull(name: str) -> bytes:
        pulled.append(name)
        return bytes(1 << 20)

    with pytest.raises(FedstillError, match="it is larger than 8 MiB"):
        parcel.fetch(pull, limit)
    assert len(pulled) == 9
