"""`fedstill hub`: Flower's SuperLink behind fedstill's guard."""

import json
import os
import secrets
import threading
import time
from functools import partial
from pathlib import Path

from fedstill.core.errors import FedstillError, UsageError
from fedstill.flower.approvals import Approvals
from fedstill.flower.audit import AuditLog
from fedstill.flower.flwr_env import prepare
from fedstill.flower.keeping import DATABASE, keep, shrunk
from fedstill.flower.messages import checked_name
from fedstill.flower.private import private_folder, warn_if_readable

CONNECTIONS = 512
"""That are open at the same time."""


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
    approval: bool = False,
    keep_days: float | None = None,
    code: tuple[str, ...] = (),
) -> None:
    """Run the hub in this process until SIGINT or SIGTERM.

    With `approval` a run is started only if another person approved its experiment; run folders in which nothing was
    written for `keep_days` are deleted; `code` is what outside fedstill (`package.module:Name`) an experiment may name.
    """
    _checked({"--cert": cert, "--key": key, "--ca": ca}, insecure, allow)
    home = private_folder(state)
    runs = (runs or home / "runs").expanduser().resolve()
    prepare(home / "flwr")
    os.environ["FEDSTILL_RUNS"] = str(runs)
    os.environ["FEDSTILL_PUBLIC"] = public or ""
    os.environ["FEDSTILL_CODE"] = json.dumps(code)
    os.environ["FEDSTILL_AUDIT"] = str(home / "audit.jsonl")
    from fedstill.flower.api.superlink import serve_superlink, take_tasks
    from fedstill.flower.guard import Guard
    from fedstill.flower.keyring import KeyRing
    from fedstill.flower.keys import read_public
    from fedstill.flower.lines import LARGEST_HEAD, TimedProtocol
    from fedstill.flower.tokens import Tokens

    if key is not None:
        warn_if_readable(key)
    names = {checked_name("site", file.stem): read_public(file) for file in allow}
    ring = None if insecure else KeyRing(home, names)
    for name in [name for name, known in names.items() if ring and ring.is_revoked(known)]:
        print(f"site {name}: its key was revoked and stays out; make a new one (fedstill keys {name})", flush=True)
        del names[name]
    tokens = Tokens(home)
    audit = AuditLog(home / "audit.jsonl")
    audit.write("hub started", host=host, port=port, sites=sorted(names))
    shrunk(home / DATABASE)
    keep(runs, keep_days, audit, partial(print, flush=True))
    address = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    (home / "hub.json").write_text(json.dumps({"address": address, "ca": None if ca is None else str(ca.resolve())}))
    words = ["--host", host, "--port", str(port), "--database", str(home / DATABASE)]
    words += ["--insecure"] if insecure else [
        "--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(ca), "--enable-supernode-auth",
    ]  # fmt: skip
    ready = threading.Event()
    begin = (address, ca, insecure, tokens.keeper, names, ready, audit)
    threading.Thread(target=_begin, args=begin, daemon=True).start()
    secret, stopped = secrets.token_bytes(32), threading.Event()
    threading.Thread(target=take_tasks, args=(address, ca, secret, stopped), daemon=True).start()
    try:
        serve_superlink(
            [*words, "--disable-runtime-dependency-installation"],
            lambda app: Guard(app, tokens, runs, ring, audit, ready, Approvals(home) if approval else None),
            secret,
            http=TimedProtocol,
            ws="none",
            proxy_headers=False,  # whom a request says it comes from is nobody's word: the guard asks the system
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=LARGEST_HEAD,
        )
    finally:
        stopped.set()


def _checked(files: dict[str, Path | None], insecure: bool, allow: tuple[Path, ...]) -> None:
    """Refuse options that do not go together."""
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


def _begin(
    address: str,
    ca: Path | None,
    insecure: bool,
    token: str,
    names: dict[str, bytes],
    ready: threading.Event,
    audit: AuditLog,
) -> None:
    """Wait until the hub answers, register the keys that are new, and go on with the runs that were under way."""
    from fedstill.flower.control import HubClient

    with HubClient(address, ca, insecure, token) as there:
        for _ in range(300):
            if there.alive():
                break
            time.sleep(0.2)
        try:
            for name, public in names.items():
                print(there.register(name, public), flush=True)
            for run in there.restart():
                audit.write("run restarted", run=run)
                print(f"run {run} was under way and goes on from its last checkpoint", flush=True)
        except FedstillError as error:
            print(f"warning: {error}", flush=True)
        finally:
            ready.set()
    print(f"hub ready at {address}" + (" (plain text, any site)" if insecure else ""), flush=True)
