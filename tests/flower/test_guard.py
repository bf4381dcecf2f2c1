"""The guard before the hub: who is let in, with what, and how much is read of those who are not."""

import asyncio
import base64
import io
import json
import os
import socket
import tarfile
import threading
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.core.errors import UsageError
from fedstill.flower import audit, guard, hub
from fedstill.flower.allowance import allow
from fedstill.flower.api import requests as api
from fedstill.flower.api import superlink
from fedstill.flower.audit import AuditLog
from fedstill.flower.bundle import app_bundle
from fedstill.flower.guard import Guard
from fedstill.flower.keyring import KeyRing
from fedstill.flower.keys import make_certificates, make_key, read_public
from fedstill.flower.peer import owner
from fedstill.flower.tokens import Tokens

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's bundles

Event = MutableMapping[str, Any]


class Application:
    """What stands behind the guard: remembers what was let through."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answer = b"through"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer})


class Door:
    """A guard with two sites, and requests to it."""

    def __init__(self, home: Path) -> None:
        self.keys = {name: api.new_keys() for name in ("site-a", "site-b")}
        self.app = Application()
        self.tokens = Tokens(home)
        self.audit = home / "audit.jsonl"
        self.ring = KeyRing(home, {name: api.key_bytes(public) for name, (_, public) in self.keys.items()})
        self.guard = Guard(self.app, self.tokens, home / "runs", self.ring, AuditLog(self.audit), threading.Event())
        self.guard.ready.set()
        self.read = 0
        self.more: list[tuple[str, str]] = []
        """Headers beside those of a request."""

    def signed(self, name: str, stamp: str | None = None) -> dict[str, str]:
        from flwr.supercore.primitives.asymmetric import sign_message

        private, public = self.keys[name]
        stamp = stamp or datetime.now(UTC).isoformat()
        coded = {"flwr-public-key": api.key_bytes(public), "flwr-signature": sign_message(private, stamp.encode())}
        return {"flwr-timestamp": stamp, **{k: base64.b64encode(v).decode() for k, v in coded.items()}}

    def ask(
        self,
        path: str,
        body: Any = b"",
        headers: dict[str, str] | None = None,
        client: str = "10.0.0.9",
        method: str = "POST",
    ) -> tuple[int, bytes]:
        """A request whose body comes in pieces (a list), or not at all (None); its status and answer."""
        return asyncio.run(self.asked(path, body, headers, client, method))

    async def asked(
        self,
        path: str,
        body: Any = b"",
        headers: dict[str, str] | None = None,
        client: str = "10.0.0.9",
        method: str = "POST",
    ) -> tuple[int, bytes]:
        """The same, among others at the same time."""
        pieces = body if isinstance(body, list) else [body]
        events: list[Event] = [
            {"type": "http.request", "body": piece, "more_body": i + 1 < len(pieces)} for i, piece in enumerate(pieces)
        ]
        self.read = 0
        given: list[Any] = []

        async def receive() -> Event:
            self.read += 1
            if not events or events[0]["body"] is None:
                await asyncio.sleep(3600)
            return events.pop(0)

        async def send(event: Event) -> None:
            given.append(event)

        scope = {
            "type": "http", "path": path, "method": method, "client": (client, 1), "server": ("10.0.0.1", 9080),
            "headers": [(k.lower().encode(), v.encode()) for k, v in [*(headers or {}).items(), *self.more]],
        }  # fmt: skip
        await self.guard(scope, receive, send)
        return given[0]["status"], b"".join(event.get("body", b"") for event in given[1:])

    def with_token(self, path: str, token: str, body: bytes = b"", method: str = "POST") -> int:
        return self.ask(path, body, {"X-Fedstill-Token": token}, method=method)[0]


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_site_with_its_key_is_let_in(door: Door) -> None:
    assert door.ask("/v1/fleet/pull-messages", b"x", door.signed("site-a")) == (200, b"through")
    assert door.app.bodies == [b"x"]


def test_nothing_is_read_of_a_stranger(door: Door, tmp_path: Path) -> None:
    """No signature, a stranger's key, an old stamp, a signature of another stamp: 401 before a byte of the body."""
    (tmp_path / "other").mkdir()
    stranger = Door(tmp_path / "other")
    old = datetime.fromtimestamp(time.time() - 3600, UTC).isoformat()
    mixed = {**door.signed("site-a"), "flwr-timestamp": datetime.now(UTC).isoformat()}
    for headers in ({}, stranger.signed("site-a"), door.signed("site-a", old), mixed, {"flwr-public-key": "~~"}):
        assert door.ask("/v1/fleet/push-object", b"x" * 100, headers)[0] == 401
        assert door.read == 0
    assert door.app.bodies == []


def test_strangers_cannot_fill_the_log(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 in one moment: the first 20 are entered."""
    monkeypatch.setattr(audit, "time", SimpleNamespace(time=time.time, monotonic=lambda: 1000.0))
    for _ in range(100):
        door.ask("/v1/fleet/push-object", b"", {})
    assert audit.verify(door.audit).lines == audit.BURST


def test_bodies_are_bounded_however_they_come(door: Door) -> None:
    """Announced too long: nothing is read. In pieces, whatever the header's case: reading stops past the bound."""
    signed = door.signed("site-a")
    assert door.ask("/v1/fleet/push-object", b"", {**signed, "Content-Length": str(1 << 40)})[0] == 413
    assert door.read == 0
    piece = b"\0" * (1 << 20)
    for name in ("Transfer-Encoding", "TRANSFER-ENCODING"):
        assert door.ask("/v1/fleet/push-object", [piece] * 64, {**signed, name: "Chunked"})[0] == 413
        assert door.read == guard.LARGEST // len(piece) + 1
    assert door.app.bodies == []


def test_a_body_that_never_ends_is_given_up(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "READING", 0.05)
    assert door.ask("/v1/fleet/push-object", [b"x", None], door.signed("site-a"))[0] == 408


def test_a_site_that_sends_slowly_does_not_keep_the_others_waiting(door: Door) -> None:
    """site-a begins more bodies than the hub reads at a time and ends none; site-b and the keeper are served."""

    async def crowd() -> list[int]:
        slow = [
            asyncio.create_task(door.asked("/v1/fleet/push-object", [b"x", None], door.signed("site-a")))
            for _ in range(2 * guard.AT_ONCE)
        ]
        await asyncio.sleep(0)
        token = {"X-Fedstill-Token": door.tokens.keeper}
        others = (
            door.asked("/v1/fleet/pull-messages", b"", door.signed("site-b")),
            door.asked("/fedstill/hub", b"", token),
        )
        found = [(await asyncio.wait_for(other, 600))[0] for other in others]
        for task in slow:
            task.cancel()
        return found

    assert asyncio.run(crowd()) == [200, 200]


def test_a_revoked_key_stays_out_and_a_name_has_one_key(door: Door, tmp_path: Path) -> None:
    """site-a is shut out at once, and after a restart; site-b's new key takes the place of its old one."""
    keeper = door.tokens.keeper
    assert door.with_token("/fedstill/keys/site-a", keeper, method="DELETE") == 200
    assert door.ask("/v1/fleet/pull-messages", b"", door.signed("site-a"))[0] == 401
    assert door.ask("/v1/fleet/pull-messages", b"", door.signed("site-b"))[0] == 200
    old = {name: api.key_bytes(public) for name, (_, public) in door.keys.items()}
    with pytest.raises(UsageError, match="was revoked"):
        door.ring.allow("site-a", old["site-a"])
    assert set(KeyRing(tmp_path, old).names.values()) == {"site-b"}
    before = door.signed("site-b")
    door.keys["site-b"] = api.new_keys()
    new = {"name": "site-b", "key": api.key_bytes(door.keys["site-b"][1]).hex()}
    assert door.with_token("/fedstill/keys", keeper, json.dumps(new).encode()) == 200
    assert door.ask("/v1/fleet/pull-messages", b"", before)[0] == 401
    assert door.ask("/v1/fleet/pull-messages", b"", door.signed("site-b"))[0] == 200
    events = [(e["event"], e.get("site")) for e in audit.entries(door.audit)]
    assert ("key revoked", "site-a") in events
    assert ("key allowed", "site-b") in events


def test_a_site_left_out_of_the_list_is_not_let_in(door: Door, tmp_path: Path) -> None:
    only = {"site-b": api.key_bytes(door.keys["site-b"][1])}
    door.guard.keys = KeyRing(tmp_path, only)
    assert door.ask("/v1/fleet/pull-messages", b"", door.signed("site-a"))[0] == 401
    assert door.ask("/v1/fleet/pull-messages", b"", door.signed("site-b"))[0] == 200


def test_a_hub_whose_list_names_a_revoked_key_says_so_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list of site-a and site-b: one line on site-a, whose key is not registered again; site-b is let in."""
    make_certificates(tmp_path, ["127.0.0.1"])
    keys = [make_key(tmp_path / name)[1] for name in ("site-a", "site-b")]
    (tmp_path / "hub").mkdir()
    ring = KeyRing(tmp_path / "hub", {file.stem: read_public(file) for file in keys})
    ring.revoke("site-a")
    registered: list[dict[str, bytes]] = []
    started: list[Guard] = []
    for name in ("FEDSTILL_RUNS", "FEDSTILL_PUBLIC", "FEDSTILL_CODE", "FEDSTILL_AUDIT"):
        monkeypatch.setenv(name, "")  # put back after the test
    monkeypatch.setattr(hub, "prepare", lambda home: None)
    monkeypatch.setattr(hub, "_begin", lambda *begin: registered.append(begin[4]))
    monkeypatch.setattr(superlink, "take_tasks", lambda *_: None)
    monkeypatch.setattr(superlink, "serve_superlink", lambda words, guarded, *_, **__: started.append(guarded(None)))
    tls = (tmp_path / name for name in ("server.pem", "server.key", "ca.crt"))
    hub.hub("127.0.0.1", 1, tmp_path / "hub", *tls, allow=tuple(keys))
    assert "site site-a: its key was revoked and stays out" in capsys.readouterr().out
    assert [list(names) for names in registered] == [["site-b"]]
    assert started[0].keys is not None
    assert list(started[0].keys.names.values()) == ["site-b"]


def test_a_hub_started_without_a_list_keeps_the_keys_that_were_let_in(tmp_path: Path) -> None:
    """It may start with none at all; what is let in later is there after the next start."""
    key = api.key_bytes(api.new_keys()[1])
    KeyRing(tmp_path, {}).allow("site-a", key)
    assert KeyRing(tmp_path, {}).names == {key: "site-a"}


def test_tokens_have_a_role_and_an_end(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """read follows, start starts and follows, register lets keys in; none does more, and none after its days."""
    start, read, register = (door.tokens.make("alice", role, 1) for role in ("start", "read", "register"))
    ours = _start_request(app_bundle())
    asked = {
        "/v1/control/list-runs": b"", "/v1/control/stream-logs": b"", "/v1/control/start-run": ours,
        "/v1/control/stop-run": b"", "/v1/control/register-node": b"", "/fedstill/hub": b"",
    }  # fmt: skip
    allowed = {
        token: [path.rpartition("/")[2] for path, body in asked.items() if door.with_token(path, token, body) == 200]
        for token in (start, read, register, "guess", "")
    }
    assert allowed[start] == ["list-runs", "stream-logs", "start-run", "stop-run", "hub"]
    assert allowed[read] == ["list-runs", "stream-logs", "hub"]
    assert allowed[register] == ["register-node"]
    assert allowed["guess"] == allowed[""] == []
    assert start not in (door.tokens.file).read_text()
    later = time.time() + 86401
    monkeypatch.setattr("fedstill.flower.tokens.time.time", lambda: later)
    assert door.with_token("/v1/control/list-runs", read) == 401
    monkeypatch.undo()
    assert door.tokens.withdraw("alice") == 3
    assert door.with_token("/v1/control/list-runs", read) == 401


def _start_request(content: bytes, **more: str) -> bytes:
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    return bytes(StartRunRequest(fab=fab_to_proto(Fab("0" * 64, content, {})), **more).SerializeToString())


def test_only_our_own_app_is_started(door: Door) -> None:
    """A bundle that came with a token would be run on the hub: none but fedstill's own is taken.

    Nor may a request bring that one and name another, which Flower would fetch from its own market and run instead.
    """
    keeper = door.tokens.keeper
    evil = app_bundle().replace(b"fedstill", b"fedst1ll")
    beside = [_start_request(app_bundle(), **more) for more in ({"app_spec": "@evil/app"}, {"federation": "@evil/f"})]
    for body in (_start_request(evil), _start_request(b""), b"noise", b"", *beside):
        assert door.with_token("/v1/control/start-run", keeper, body) == 400
    assert door.app.bodies == []
    assert door.with_token("/v1/control/start-run", keeper, _start_request(app_bundle())) == 200
    for path in ("/v1/control/add-app", "/v1/control/create-federation", "/docs", "/openapi.json"):
        assert door.with_token(path, keeper) == 404


def test_the_runtime_is_for_the_hubs_own_user_on_this_machine(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine, and another user of this one, cannot take a run's task."""
    assert door.ask("/v1/runtime/acquire-task")[0] == 401
    for user, status in ((os.getuid(), 200), (0, 200), (os.getuid() + 1, 401), (None, 401)):
        monkeypatch.setattr(guard, "owner", lambda host, port, user=user: user)
        assert door.ask("/v1/runtime/acquire-task", client="127.0.0.1")[0] == status
    monkeypatch.setattr(guard, "tells_owners", lambda: False)  # another system: the hub's secret is left
    assert door.ask("/v1/runtime/acquire-task", client="127.0.0.1")[0] == 200


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_the_other_end_of_a_connection_has_an_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert owner(*client.getsockname()) == os.getuid()
        assert owner("127.0.0.1", 1) is None
        client.shutdown(socket.SHUT_WR)  # half closed, as somebody would who wants to be taken for nobody
        assert owner(*client.getsockname()) is None


@pytest.mark.parametrize("twice", ["flwr-public-key", "flwr-signature", "flwr-timestamp", "x-fedstill-token"])
def test_a_credential_comes_once(door: Door, twice: str) -> None:
    """Of two keys in one request the guard would check one, and Flower might read the other."""
    headers = {**door.signed("site-a"), "x-fedstill-token": door.tokens.keeper}
    for second in (twice.upper(), twice):
        door.more = [(second, headers[twice])]
        assert door.ask("/v1/fleet/pull-messages", b"", headers)[0] == 400
    assert door.app.bodies == []


def test_a_hub_that_is_starting_says_so(door: Door) -> None:
    door.guard.ready.clear()
    assert door.with_token("/fedstill/hub", door.tokens.keeper) == 503


def _push(
    node: int = 5, src: int = 5, dst: int = 1, reply_to: str = "m", objects: int = 1, messages: int = 1, run: int = 1
) -> bytes:
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node

    about = Metadata(run_id=run, src_node_id=src, dst_node_id=dst, reply_to_message_id=reply_to)
    tree = ObjectTree(object_id="r", children=[ObjectTree(object_id=str(i)) for i in range(objects)])
    made = PushMessagesRequest(
        node=Node(node_id=node), messages_list=[Message(metadata=about)] * messages, message_object_trees=[tree]
    )
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_push(src=6), "another's name"),
        (_push(dst=6), "to another site"),
        (_push(src=1, dst=6), "another's name"),
        (_push(reply_to=""), "answers none"),
        (_push(objects=20_000), "more than 1024 objects"),
        (_push(messages=2), "one message"),
        (_push(reply_to="q" * (1 << 20)), "an announcement of"),
        (b"\xff\xff", "can be read"),
    ],
)
def test_a_site_speaks_for_itself_only_and_to_the_hub_only(door: Door, body: bytes, words: str) -> None:
    """A message in another's name, or to another site, would command that site; a huge tree would block the hub."""
    status, said = door.ask("/v1/fleet/push-messages", body, door.signed("site-a"))
    assert status == 403
    assert words in json.loads(said)["detail"]
    assert door.app.bodies == []
    assert door.ask("/v1/fleet/push-messages", _push(), door.signed("site-a"))[0] == 200


def test_an_answer_has_no_more_bytes_than_its_run_allows(door: Door, tmp_path: Path) -> None:
    """The run allows 20 MiB, and 6 are to spare: five pieces of 5 MiB pass, the sixth does not reach the database.

    Nothing passes before an answer was announced and taken; announcing it again, or one that Flower does not take,
    gives nothing more; the next question does.
    """
    from flwr.proto.fleet_pb2 import PushMessagesResponse

    taken = PushMessagesResponse(objects_to_push=["a"]).SerializeToString()
    allow(tmp_path / "runs", 9, 20 << 20)
    piece = b"\0" * (5 << 20)

    def announced(question: str, answer: bytes) -> None:
        door.app.answer = answer
        assert door.ask("/v1/fleet/push-messages", _push(reply_to=question, run=9), door.signed("site-a"))[0] == 200

    def pushed() -> int:
        return door.ask("/v1/fleet/push-object", piece, door.signed("site-a"))[0]

    assert pushed() == 413
    announced("q1", taken)
    assert [pushed() for _ in range(7)] == [200] * 5 + [413] * 2
    announced("q1", taken)
    assert pushed() == 413
    other = _push(reply_to="q1", run=9, objects=2)
    assert door.ask("/v1/fleet/push-messages", other, door.signed("site-a"))[0] == 403  # its objects would be kept too
    assert door.app.bodies[-1] != other
    announced("q2", PushMessagesResponse().SerializeToString())
    assert pushed() == 413
    announced("q3", taken)
    assert pushed() == 200
    assert len([body for body in door.app.bodies if body == piece]) == 6
    assert door.ask("/v1/fleet/push-object", b"x", door.signed("site-b"))[0] == 413


def test_a_site_asks_for_nothing_but_what_sites_need(door: Door) -> None:
    for what in ("register-node", "unregister-node", "push-messages/", "anything"):
        assert door.ask(f"/v1/fleet/{what}", b"", door.signed("site-a"))[0] == 404
    assert door.app.bodies == []


def test_a_runs_folder_and_plan_are_given_and_a_damaged_plan_is_said(door: Door, tmp_path: Path) -> None:
    """Hidden files stay; a plan that is no JSON is a line for whoever asks, not a fault of the hub."""
    folder = tmp_path / "runs" / "demo"
    (folder / "models").mkdir(parents=True)
    for file in ("experiment.json", "models/a", ".lock"):
        (folder / file).write_text('{"seed": 1}')
    token = {"X-Fedstill-Token": door.tokens.make("bob", "read", 1)}
    with tarfile.open(fileobj=io.BytesIO(door.ask("/fedstill/runs/demo", headers=token)[1])) as tar:
        assert sorted(tar.getnames()) == ["demo", "demo/experiment.json", "demo/models", "demo/models/a"]
    assert door.ask("/fedstill/plans/demo", headers=token) == (200, b'{"seed": 1}')
    (folder / "experiment.json").write_text('{"seed"')
    status, said = door.ask("/fedstill/plans/demo", headers=token)
    assert status == 409
    assert "its experiment.json is damaged" in json.loads(said)["detail"]
    assert door.ask("/fedstill/plans/../demo", headers=token)[0] == 400
    assert door.ask("/fedstill/runs/..", headers=token)[0] == 400


def test_health_is_for_everybody_and_numbers_for_readers(door: Door, tmp_path: Path) -> None:
    assert json.loads(door.ask("/fedstill/health", client="10.0.0.9")[1])["status"] == "ok"
    assert door.ask("/fedstill/metrics")[0] == 401
    run = tmp_path / "runs" / "demo"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}\n{}\n")
    door.ask("/v1/fleet/pull-messages", b"", door.signed("site-a"))
    read = door.tokens.make("prometheus", "read", 1)
    text = door.ask("/fedstill/metrics", headers={"X-Fedstill-Token": read}, method="GET")[1].decode()
    assert 'fedstill_requests_total{kind="fleet",site="site-a"} 1' in text
    assert 'fedstill_run_rounds{run="demo"} 2' in text
    assert 'fedstill_requests_total{kind="refused",site=""} 1' in text
