"""`fedstill hub`: Flower's SuperLink behind a guard.

Sites come in over the Fleet API with their registered keys. Starting, stopping and reading runs (the Control API, which
Flower leaves open to whoever reaches the port) takes the hub's token; what a run's own process uses (the Runtime API)
is for this machine alone. The guard also refuses oversized requests and gives run folders to those who have the token.
"""

import hmac
import json
import os
import secrets
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, UsageError
from fedstill.flower.flwr_env import prepare
from fedstill.flower.messages import checked_name

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
TOKEN = b"x-fedstill-token"
LARGEST = 64 << 20
"""Bytes of one request; Flower sends arrays in chunks of 5 MiB."""


class Guard:
    """Stands before the SuperLink's HTTP application."""

    def __init__(self, app: Any, token: str, runs: Path) -> None:
        self.app = app
        self.token = token.encode()
        self.runs = runs
        self.instance = secrets.token_hex(8)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path: str = scope["path"]
        headers = dict(scope["headers"])
        known = hmac.compare_digest(headers.get(TOKEN, b""), self.token)
        local = (scope.get("client") or ("",))[0] in ("127.0.0.1", "::1", (scope.get("server") or ("",))[0])
        if int(headers.get(b"content-length", b"0") or 0) > LARGEST or b"chunked" in headers.get(
            b"transfer-encoding", b""
        ):
            await _say(send, 413, {"detail": f"requests may have {LARGEST >> 20} MiB, and say how long they are"})
        elif path.startswith("/v1/fleet/") or (path.startswith("/v1/runtime/") and local):
            await self.app(scope, receive, send)
        elif not known:
            await _say(send, 401, {"detail": "the hub's token is needed (fedstill deploy --token)"})
        elif path.startswith("/v1/control/"):
            await self.app(scope, receive, send)
        elif path == "/fedstill/hub":
            await _say(send, 200, {"instance": self.instance, "runs": str(self.runs)})
        elif path.startswith("/fedstill/runs/"):
            await self._give(path.removeprefix("/fedstill/runs/"), send)
        else:
            await _say(send, 404, {"detail": "no such thing here"})

    async def _give(self, run: str, send: Send) -> None:
        """A run's folder as a tar file."""
        try:
            folder = self.runs / checked_name("run", run)
        except FedstillError as error:
            await _say(send, 400, {"detail": str(error)})
            return
        if not (folder / "experiment.json").exists():
            await _say(send, 404, {"detail": f"no run {run} here"})
            return
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                tar.add(folder, arcname=run, filter=lambda entry: None if "/." in entry.name else entry)
            size = file.tell()
            file.seek(0)
            await send(_start(200, b"application/x-tar", size))
            while piece := file.read(1 << 20):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _start(status: int, kind: bytes, size: int) -> MutableMapping[str, Any]:
    headers = [(b"content-type", kind), (b"content-length", str(size).encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _say(send: Send, status: int, content: Any) -> None:
    body = json.dumps(content).encode()
    await send(_start(status, b"application/json", len(body)))
    await send({"type": "http.response.body", "body": body})


def hub(
    host: str,
    port: int,
    state: Path,
    cert: Path | None = None,
    key: Path | None = None,
    ca: Path | None = None,
    allow: tuple[Path, ...] = (),
    insecure: bool = False,
    runs: Path | None = None,
    public: str | None = None,
) -> None:
    """Run the hub in this process until SIGINT or SIGTERM."""
    files = {"--cert": cert, "--key": key, "--ca": ca}
    if insecure and any(files.values()):
        raise UsageError("--insecure and certificates: choose one")
    if not insecure:
        for option, file in files.items():
            if file is None:
                raise UsageError(
                    f"{option} is missing (fedstill keys --hub makes certificates); --insecure only if you mean it"
                )
            if not file.exists():
                raise UsageError(f"{option} {file}: no such file")
    if insecure and allow:
        raise UsageError("--allow: keys need a hub with certificates, not --insecure")
    home = state.expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    runs = (runs or home / "runs").expanduser().resolve()
    prepare(home / "flwr")
    os.environ["FEDSTILL_RUNS"] = str(runs)
    os.environ["FEDSTILL_PUBLIC"] = public or ""
    from fedstill.flower.keys import read_public

    names = {checked_name("site", file.stem): read_public(file) for file in allow}
    token = hub_token(home)
    address = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    (home / "hub.json").write_text(json.dumps({"address": address, "ca": None if ca is None else str(ca.resolve())}))
    words = ["--host", host, "--port", str(port), "--database", str(home / "hub.db")]
    words += ["--insecure"] if insecure else [
        "--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(ca), "--enable-supernode-auth",
    ]  # fmt: skip
    threading.Thread(target=_register, args=(address, ca, insecure, token, names), daemon=True).start()
    _run([*words, "--disable-runtime-dependency-installation"], token, runs)


def _run(words: list[str], token: str, runs: Path) -> None:
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli import flower_superlink as superlink
    from flwr.superlink.main import create_app

    link = sys.modules[superlink.__module__]
    sys.argv = ["flower-superlink", *words]
    config = link._parse_superlink_lifespan_config()
    uvicorn.run(
        app=Guard(create_app(config, link.SuperLinkLifespan), token, runs),
        host=config.host,
        port=config.port,
        access_log=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
    )


def _register(address: str, ca: Path | None, insecure: bool, token: str, names: dict[str, bytes]) -> None:
    """Wait until the hub answers, then register the keys that are new."""
    from fedstill.flower.control import HubClient

    with HubClient(address, ca, insecure, token) as there:
        for _ in range(300):
            try:
                there.instance()
                break
            except FedstillError:
                time.sleep(0.2)
        else:
            return
        for name, public in names.items():
            print(there.register(name, public), flush=True)
    print(f"hub ready at {address}" + (" (plain text, any site)" if insecure else ""), flush=True)


def hub_token(home: Path) -> str:
    """The hub's token, made once; whoever can read the file may start and stop runs."""
    file = home / "token"
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(secrets.token_urlsafe(32))
    return file.read_text().strip()
