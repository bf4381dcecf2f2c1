"""`fedstill site`: one site, with its own data, its own model, its own disk and its own policy."""

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.data.own import read_own
from fedstill.data.reading import Reading
from fedstill.data.summary import disclosed, summary
from fedstill.flower.audit import AuditLog
from fedstill.flower.flwr_env import prepare
from fedstill.flower.keeping import keep
from fedstill.flower.messages import Enrol, Refusal, answer, checked_name, question, readable
from fedstill.flower.policy import Policy
from fedstill.flower.private import private_folder, warn_if_readable
from fedstill.flower.site_health import SiteHealth, served
from fedstill.flower.worker import Cancelled, Job, Worker

LEAVING = 20.0
"""Seconds from the signal to stop to the end, whatever the hub does."""


def site(
    hub: str,
    data: str,
    state: Path,
    key: Path | None = None,
    name: str | None = None,
    ca: Path | None = None,
    insecure: bool = False,
    model: str = "auto",
    public: str | None = None,
    device: str = "cpu",
    policy: Policy | None = None,
    reading: Reading | None = None,
    health_at: str | None = None,
    keep_days: float | None = None,
) -> None:
    """Answer the hub's questions until told to stop (SIGINT, SIGTERM).

    `health_at` (host:port) is where to serve `/health` and `/metrics`; what was kept of runs in which nothing was
    written for `keep_days` is deleted.
    """
    if insecure == (key is not None):
        raise UsageError("a site needs --key (fedstill keys makes one), or --insecure where the hub takes any site")
    if insecure and ca is not None:
        raise UsageError("--ca and --insecure: choose one")
    title = checked_name("site", name or (key.stem if key else state.resolve().name))
    home = private_folder(state)
    if key is not None:
        warn_if_readable(key)
    prepare(home / "flwr")
    from fedstill.flower.node import Line, WarmNode

    policy = policy or Policy()
    with (home / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--state {state}: another site uses this folder") from None
        try:
            root = ca.read_bytes() if ca else None
        except OSError as error:
            raise UsageError(f"--ca {ca}: {error.strerror}") from None
        node = WarmNode(Line(hub, root, key, insecure), home, report, policy.turn_bytes + (8 << 20))
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: _leave(node.stop))
        worker = Worker(Job(title, data, home, model, public, device, policy, reading, key), report)
        audit, health = AuditLog(home / "audit.jsonl"), SiteHealth(lambda: node.connected)
        server = served(health, health_at) if health_at else None
        try:
            worker.start()
            report(f"site {title}: {worker.described}")
            keep(home / "runs", keep_days, audit, report)
            node.serve(Answering(title, worker, policy, audit, health))
        finally:
            worker.stop()
            if server is not None:
                server.shutdown()
        report("left the hub")


def _leave(stop: Callable[[], None]) -> None:
    """Stop, and go in any case after `LEAVING`: a hub that answers byte by byte could keep a site that waits for it."""
    stop()
    last = threading.Timer(LEAVING, os._exit, (0,))  # the worker ends with this process
    last.daemon = True
    last.start()


@dataclass(frozen=True)
class Answering:
    """Lets the worker answer, within the policy's time."""

    name: str
    worker: Worker
    policy: Policy
    audit: AuditLog
    health: SiteHealth

    def __call__(self, head: bytes, body: bytes | None, given_up: Callable[[], bool]) -> tuple[bytes, bytes | None]:
        """The worker's answer to a question that passes the door."""
        asked = question(head)
        seconds = self.policy.seconds_of(0.0 if isinstance(asked, Enrol) else asked.deadline)
        began, end = time.monotonic(), "failed"
        try:
            reply, upload = self.worker.answer(head, body, seconds, given_up)
            end = "refused" if isinstance(answer(reply), Refusal) else "answered"
            return reply, upload
        except Cancelled:
            end = "given up"
            self.audit.write("given up", run=asked.run, asked=asked.kind)
            raise
        finally:
            self.health.count(asked.kind, end, time.monotonic() - began)

    def refuse(self, why: str) -> bytes:
        """A refusal of something that is no question, or of one that took too long."""
        why = readable(why)
        report(f"refused: {why}")
        self.audit.refusal(run="", asked="?", why=why)
        return Refusal(run="", site=self.name, why=why).dumps()


def introduction(data: str, reading: Reading | None) -> str:
    """The very numbers that a site with these data tells when a run begins."""
    own = read_own(data, reading)
    return "\n".join(
        ["Of these data it tells:", *(f"  {line}" for line in disclosed(summary(own.train, own.class_names)))]
    )


def explain(policy: Policy) -> str:
    """What leaves a site, from the methods' own declarations, and what its policy refuses."""
    import fedstill.methods  # noqa: F401 (registers them)

    names = policy.methods or tuple(methods)
    lines = [
        "What leaves this site:",
        "  when a run begins   its name, its model's name, how many samples it trains and tests on, their form",
        "                      (images: size and lowest value; tables: names of columns and of their categories),",
        "                      mean and deviation of every channel or column of numbers, how many are not missing,",
        "                      the names of its classes,",
        "                      a checksum of its data under a secret of its own, the last round it took part in,",
        "                      and a checksum of the public set where the method needs one",
        "  after every turn    what the method uploads (below), and how many seconds the turn took",
        "  at every exam       how many of its test samples each model got right (per class if the experiment asks)",
        "Its samples, its state and models of its own stay here. A method uploads:",
    ]
    width = max(map(len, names))
    for name in names:
        fields = methods[name].leaves_client()
        lines.append(f"  {name:<{width}}  " + ", ".join(f"{field}: {what}" for field, what in fields.items()))
    lines.append(policy.explain())
    if not policy.methods:
        lines.append("With --only METHOD (again for more) or --policy FILE the site takes part in less.")
    return "\n".join(lines)


def report(*words: Any) -> None:
    """A line for whoever watches the site; what a hub wrote into it commands no terminal."""
    print(time.strftime("%H:%M:%S"), readable(" ".join(map(str, words)), 2000), file=sys.stderr, flush=True)
