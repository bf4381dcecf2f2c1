"""The guard before Flower's SuperLink: who may ask what, and how much of a request is read before that is known.

Sites come in over the Fleet API with registered keys; their signature is checked before a byte of the body is read.
Starting, stopping and reading runs (the Control API, which Flower leaves open to whoever reaches the port) takes one of
the hub's tokens; what a run's own process uses (the Runtime API) is for the hub's own user on this machine alone. Only
fedstill's own app bundle is ever started.
"""

import asyncio
import json
import os
import secrets
import tarfile
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import IO, Any

from fedstill.core.errors import FedstillError, RunError
from fedstill.flower.allowance import Allowances
from fedstill.flower.api.requests import announced, started_order, stopped_run, was_taken
from fedstill.flower.approvals import Approvals, number
from fedstill.flower.audit import AuditLog
from fedstill.flower.bundle import is_ours
from fedstill.flower.health import Health
from fedstill.flower.keeping import pack
from fedstill.flower.keyring import KeyRing
from fedstill.flower.messages import checked_name, readable
from fedstill.flower.peer import owner, tells_owners
from fedstill.flower.tokens import KEEPER, Role, Tokens

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
TOKEN = b"x-fedstill-token"
LARGEST = 16 << 20
"""Bytes of one request; Flower sends arrays in chunks of 5 MiB."""
READING = 60.0
"""Seconds that the body of a request may take to come in."""
AT_ONCE = 16
"""Bodies that are read at the same time: with `LARGEST` this bounds the memory that senders can claim."""
AT_ONCE_OF_ONE = 4
"""Bodies of one site, or of one token's holder: nobody keeps the others waiting by sending slowly."""
ROLES: dict[str, Role] = {
    "/v1/control/start-run": "start",
    "/v1/control/stop-run": "start",
    "/v1/control/list-runs": "read",
    "/v1/control/stream-logs": "read",
    "/v1/control/register-node": "register",
}
"""What the Control API's paths take; every other one is refused."""
FLEET = {
    f"/v1/fleet/{what}"
    for what in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
        "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
}  # fmt: skip
"""What a site may ask for."""


class Refused(Exception):
    """A request that is not let through: its HTTP status and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """Stands before the SuperLink's HTTP application."""

    def __init__(
        self,
        app: Any,
        tokens: Tokens,
        runs: Path,
        keys: KeyRing | None,
        audit: AuditLog,
        ready: threading.Event,
        approvals: Approvals | None = None,
    ) -> None:
        self.app = app
        self.tokens = tokens
        self.runs = runs
        self.keys = keys
        """The keys that are let in; None where any is (`--insecure`)."""
        self.audit = audit
        self.approvals = approvals
        """What a second person approved; None where none is asked."""
        self.answers = Allowances(runs)
        self.health = Health()
        self.instance = secrets.token_hex(8)
        self.ready = ready
        """Set when runs that were under way before a restart have been started again."""
        self.reading = asyncio.Semaphore(AT_ONCE)
        self.reading_of: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE_OF_ONE))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            try:
                await self._admit(scope, receive, send)
            except RunError as error:  # a damaged file of the hub's own
                raise Refused(500, str(error)) from None
        except Refused as refused:
            self.health.count("refused")
            self.audit.refusal(path=readable(scope["path"], 100), status=refused.status, why=str(refused))
            await _answer(send, refused.status, {"detail": str(refused)})

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers = {name.lower(): value for name, value in scope["headers"]}
        names = Counter(name.lower() for name, _ in scope["headers"])
        if any(times > 1 for name, times in names.items() if name == TOKEN or name.startswith(b"flwr-")):
            raise Refused(400, "a credential that comes twice")  # Flower might read the other one
        if path == "/fedstill/health":
            await _answer(send, 200, self.health.state(), b"application/json")
        elif path.startswith("/v1/fleet/"):
            site = self._site(headers)
            if path not in FLEET and self.keys is not None:
                raise Refused(404, "no such thing here")
            body = await self._body(f"site {site}", headers, receive)
            self.health.count("fleet", site)
            if path == "/v1/fleet/push-messages":
                send = self._announced(site, body, send)
            elif path == "/v1/fleet/push-object" and self.keys is not None and not self.answers.take(site, len(body)):
                raise Refused(413, f"site {site}: more bytes than an answer has")
            await self.app(scope, _again(body, receive), send)
        elif path.startswith("/v1/runtime/") and _local(scope):
            await self.app(scope, receive, send)
        else:
            await self._with_token(scope, headers, receive, send)

    async def _with_token(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        token = headers.get(TOKEN, b"").decode("latin-1")
        role: Role = ROLES.get(path, "register" if path.startswith("/fedstill/keys") else "read")
        if path == "/fedstill/approvals":
            role = "approve"
        holder = self.tokens.holder(token, role)
        if holder is None:
            raise Refused(401, f"the hub's token is needed, with the role {role} (fedstill deploy --token)")
        body = await self._body(holder, headers, receive)
        if path in ROLES:
            facts: dict[str, Any] = self._startable(body, holder) if path == "/v1/control/start-run" else {}
            if path == "/v1/control/stop-run":
                facts = {"number": stopped_run(body)}
            if role != "read":
                self.audit.write(path.rpartition("/")[2], by=holder, **facts)
            await self.app(scope, _again(body, receive), send)
        elif path == "/fedstill/hub" and not self.ready.is_set():
            raise Refused(503, "the hub is starting")
        elif path == "/fedstill/hub":
            await _answer(send, 200, {"instance": self.instance, "runs": str(self.runs)})
        elif path == "/fedstill/metrics":
            await _answer(send, 200, self.health.prometheus(self.runs), b"text/plain; version=0.0.4")
        elif path.startswith("/fedstill/runs/"):
            folder = self._run(path.removeprefix("/fedstill/runs/"))
            self.audit.write("run fetched", run=folder.name, by=holder)
            await self._give(folder, send)
        elif path.startswith("/fedstill/plans/"):
            folder = self._run(path.removeprefix("/fedstill/plans/"))
            try:
                plan = json.loads((folder / "experiment.json").read_text())
            except ValueError as error:
                raise Refused(409, f"run {folder.name}: its experiment.json is damaged ({error})") from None
            await _answer(send, 200, plan)
        elif path == "/fedstill/approvals":
            await _answer(send, 200, self._approve(body, holder))
        elif path.startswith("/fedstill/keys") and self.keys is not None:
            await _answer(send, 200, self._keys(path, method, body, holder))
        else:
            raise Refused(404, "no such thing here")

    def _startable(self, body: bytes, holder: str) -> dict[str, str]:
        """What is to be started, for the log: refused where it is anything but fedstill's own app.

        Refused too is what nobody else approved where that is asked for.
        """
        if not is_ours(body):
            raise Refused(400, "only fedstill's own app is run here: deploy with the hub's version of fedstill")
        try:
            run, settings = started_order(body)
        except FedstillError as error:
            raise Refused(400, str(error)) from None
        missing = self.approvals is not None and self.approvals.missing(run, settings, holder)
        if missing and holder != KEEPER:
            raise Refused(403, f"run {run} waits for another person's approval (fedstill deploy --approve)")
        return {"run": readable(run, 100), "experiment": number(run, settings)}

    def _approve(self, body: bytes, holder: str) -> Any:
        """Enter a person's approval of an experiment."""
        if self.approvals is None:
            raise Refused(404, "this hub asks for no approval (fedstill hub --approval)")
        try:
            asked = json.loads(body)
            run, settings = checked_name("run", str(asked["run"])), dict(asked["experiment"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Refused(400, "a run's name and experiment are needed") from None
        except FedstillError as error:
            raise Refused(400, str(error)) from None
        approved = self.approvals.approve(run, settings, holder)
        self.audit.write("approved", run=run, experiment=approved, by=holder)
        return {"experiment": approved}

    def _keys(self, path: str, method: str, body: bytes, holder: str) -> Any:
        """Let a key in, or shut one out."""
        assert self.keys is not None
        try:
            if method == "DELETE":
                name = checked_name("site", path.removeprefix("/fedstill/keys/"))
                self.keys.revoke(name)
                self.audit.write("key revoked", site=name, by=holder)
            else:
                asked = json.loads(body)
                name, key = checked_name("site", str(asked["name"])), bytes.fromhex(str(asked["key"]))
                self.keys.allow(name, key)
                self.audit.write("key allowed", site=name, by=holder)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Refused(400, "a site's name and key are needed") from None
        except FedstillError as error:
            raise Refused(400, str(error)) from None
        return {"site": name}

    def _site(self, headers: dict[bytes, bytes]) -> str:
        """Who signed a request; refused before its body is read where that is nobody who is let in."""
        if self.keys is None:
            return "?"
        site = self.keys.signer(headers)
        if site is None:
            raise Refused(401, "signed by no key that is let in here (fedstill hub --allow)")
        return site

    def _announced(self, site: str, body: bytes, send: Send) -> Send:
        """A message that a node sends must be its own answer to the hub; if Flower takes it, its bytes may follow."""
        try:
            message = announced(body)
        except FedstillError as error:
            raise Refused(403, f"site {site}: {error}") from None
        if not self.answers.first(site, message.question, body):
            raise Refused(403, f"site {site}: a second answer to one question")
        response: list[bytes] = []

        async def heard(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.body":
                response.append(event.get("body", b""))
                if not event.get("more_body", False) and was_taken(b"".join(response)):
                    self.answers.grant(site, message.run, message.question, body)
            await send(event)

        return heard

    async def _body(self, sender: str, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body of a request, within bounds of size and time; of one sender a few at a time."""
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > LARGEST:
            raise Refused(413, f"requests may have {LARGEST >> 20} MiB")
        pieces, size = [], 0
        try:
            async with self.reading_of[sender], self.reading, asyncio.timeout(READING):
                while True:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise Refused(400, "the line was cut off")
                    pieces.append(event.get("body", b""))
                    size += len(pieces[-1])
                    if size > LARGEST:
                        raise Refused(413, f"requests may have {LARGEST >> 20} MiB")
                    if not event.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise Refused(408, f"the request took longer than {READING:g} s") from None

    def _run(self, run: str) -> Path:
        """The folder of a run that is there."""
        try:
            folder = self.runs / checked_name("run", run)
        except FedstillError as error:
            raise Refused(400, str(error)) from None
        if not (folder / "experiment.json").exists():
            raise Refused(404, f"no run {run} here")
        return folder

    async def _give(self, folder: Path, send: Send) -> None:
        """A run's folder as a tar file."""
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(_packed, folder, file)  # the sites' requests go on meanwhile
            size = file.tell()
            file.seek(0)
            await send(_start(200, b"application/x-tar", size))
            while piece := file.read(1 << 20):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _packed(folder: Path, file: IO[bytes]) -> None:
    """Write a run's folder into a tar file, hidden files left out."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        pack(tar, folder, folder.name, lambda name: "/." in name)


def _local(scope: Scope) -> bool:
    """Does a request come from this very machine, and from a process of the hub's own user?"""
    host, port = scope.get("client") or ("", 0)
    here = host in ("127.0.0.1", "::1", (scope.get("server") or ("",))[0])
    return here and (not tells_owners() or owner(host, port) in (os.getuid(), 0))


def _again(body: bytes, receive: Receive) -> Receive:
    """A request's body that was read already, for the application to read."""
    given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _start(status: int, kind: bytes, size: int) -> MutableMapping[str, Any]:
    headers = [(b"content-type", kind), (b"content-length", str(size).encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _answer(send: Send, status: int, content: Any, kind: bytes = b"application/json") -> None:
    body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    await send(_start(status, kind, len(body)))
    await send({"type": "http.response.body", "body": body})
