"""A real hub and real sites on this machine's loopback; every process is gone at the end, also after a failure."""

import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

FEDSTILL = [sys.executable, "-c", "from fedstill.cli import main; main()"]
STARTS = 1200.0
RUNS = 3600.0
SITES = ("site-a", "site-b", "site-c")
LONG = pytest.mark.skipif(os.environ.get("FEDSTILL_DEPLOY_TESTS") != "all", reason="long form: make test-deploy")


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to outgoing connections: it stays free."""
    for port in itertools.count(20_000 + os.getpid() * 7 % 10_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
    raise AssertionError


_given: set[int] = set()


def waited(what: Callable[[], Any], seconds: float, why: str) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:g} s for {why}")


Answer = Callable[[bytes, bytes | None], tuple[bytes, bytes | None]]


class Answers:
    """A function as a node's site."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name = name
        self.answer = answer

    def __call__(self, head: bytes, body: bytes | None, given_up: Callable[[], bool]) -> tuple[bytes, bytes | None]:
        return self.answer(head, body)

    def refuse(self, why: str) -> bytes:
        from fedstill.flower.messages import Refusal, readable

        return Refusal(run="", site=self.name, why=readable(why)).dumps()


class Federation:
    """A hub and its sites, each a process group of its own."""

    def __init__(self, folder: Path, secure: bool = True) -> None:
        self.folder = folder
        self.secure = secure
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.threads: list[tuple[Any, threading.Thread]] = []
        if secure:
            from fedstill.flower.keys import make_certificates

            make_certificates(folder, ["127.0.0.1"])
        self.ca = folder / "ca.crt" if secure else None
        self.names: list[str] = []
        self.public: Path | None = None
        """Where the hub has the public set."""

    def run(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Start fedstill with these words, in this process's environment or in `env` alone."""
        here = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(self.folder)} if env is None else env
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*FEDSTILL, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=here,
            )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def key(self, name: str) -> Path:
        from fedstill.flower.keys import make_key

        path = self.folder / name
        return path if path.exists() else make_key(path)[0]

    def start_hub(self, *names: str) -> None:
        if self.secure:
            for name in names:
                self.key(name)
            keys = [word for name in names for word in ("--allow", str(self.folder / f"{name}.pub"))]
            tls = ["--cert", "server.pem", "--key", "server.key", "--ca", "ca.crt"]
            words = [str(self.folder / w) if not w.startswith("--") else w for w in tls] + keys
        else:
            words = ["--insecure"]
        words += [] if self.public is None else ["--public", str(self.public)]
        before = self.log("hub").count("hub ready") if (self.folder / "hub.log").exists() else 0
        self.run(
            "hub", "hub", "--host", "127.0.0.1", "--port", str(self.port), "--state", str(self.folder / "hub"), *words
        )
        self.until_logged("hub", "hub ready", before + 1)

    def until_logged(self, name: str, text: str, times: int = 1, seconds: float = STARTS) -> None:
        def there() -> bool:
            if self.processes[name].poll() is not None:
                raise AssertionError(f"{name} ended: {self.log(name)[-2000:]}")
            return self.log(name).count(text) >= times

        waited(there, seconds, f"{text!r} in the log of {name}")

    def start_site(self, name: str, data: Path, *words: str, wait: bool = True) -> None:
        line = ["--key", str(self.key(name)), "--ca", str(self.ca)] if self.secure else ["--insecure", "--name", name]
        before = self.log(name).count("connected to") if (self.folder / f"{name}.log").exists() else 0
        state = str(self.folder / f"state-{name}")
        self.run(name, "site", "--hub", self.address, "--data", str(data), "--state", state, *line, *words)
        if wait:
            self.until_logged(name, "connected to", before + 1)

    def join(self, name: str, answer: Answer) -> None:
        """A site in this process that answers as it likes."""
        from fedstill.flower.node import Line, WarmNode

        line = Line(
            self.address, self.ca and self.ca.read_bytes(), self.key(name) if self.secure else None, not self.secure
        )
        node = WarmNode(line, self.folder / f"state-{name}", lambda text: None)
        thread = threading.Thread(target=node.serve, args=(Answers(name, answer),), daemon=True)
        thread.start()
        self.threads.append((node, thread))

    def leave(self) -> None:
        """The sites in this process say good-bye."""
        for node, thread in self.threads:
            node.stop()
            thread.join(20)
        self.threads = []

    def kill(self, name: str, sign: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def hub(self) -> Any:
        from fedstill.flower.control import HubClient

        return HubClient(self.address, self.ca, not self.secure, (self.folder / "hub" / "token").read_text())

    def deploy(
        self, settings: Mapping[str, Any], tell: Callable[[Any], None] | None = None, wait: float = STARTS
    ) -> Path:
        """Deploy under a fresh name (or `name`), and return the run's folder at home."""
        from fedstill.experiment.config import experiment
        from fedstill.flower.control import deploy
        from fedstill.flower.enrolment import deployable

        settings = dict(settings)
        name = settings.pop("name", f"run-{secrets.token_hex(4)}")
        plan = deployable(experiment({"clients": 3, "active": 1.0, **settings}))
        with self.hub() as hub, ThreadPoolExecutor(1) as threads:
            listener = tell or (lambda news: None)
            running = threads.submit(deploy, hub, name, plan.plain(), self.folder / "home", wait, listener, STARTS)
            try:
                return running.result(RUNS)
            except TimeoutError:
                os.killpg(self.processes["hub"].pid, signal.SIGKILL)
                raise AssertionError(f"the run did not end in {RUNS:g} s: {self.log('hub')[-3000:]}") from None

    def close(self) -> None:
        for node, _ in self.threads:
            node.stop()
        for name in [*(n for n in self.processes if n != "hub"), *(n for n in self.processes if n == "hub")]:
            self.kill(name)
        for _, thread in self.threads:
            thread.join(10)
