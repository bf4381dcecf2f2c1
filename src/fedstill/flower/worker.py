"""A site's work in a process of its own, so that a turn can be ended at any time.

The process that speaks with the hub holds neither data nor models. It hands each question to its worker, waits, and
kills the worker where the time is up, the run is over or the site is told to stop; the next question finds a new one.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, RunError
from fedstill.data.reading import Reading
from fedstill.flower.policy import Policy
from fedstill.transports.processes import end_with

LOOK = 0.1
STARTS = 600.0
"""Seconds that reading the data may take."""


Said = tuple[str, bytes, bytes | None]
"""What goes through the pipe: its kind, and one or two pieces."""


class Cancelled(Exception):
    """The question was given up; no answer is wanted."""


@dataclass(frozen=True)
class Job:
    """What a worker needs to be the site."""

    name: str
    data: str
    state: Path
    model: str = "auto"
    public: str | None = None
    device: str = "cpu"
    policy: Policy = field(default_factory=Policy)
    reading: Reading | None = None
    key: Path | None = None
    """What this site's keys of secure sums are signed with."""


class Worker:
    """The process that is the site; started again when it was killed or died."""

    def __init__(self, job: Job, report: Callable[[str], None]) -> None:
        self.job = job
        self.report = report
        self.process: Any = None
        self.pipe: Connection | None = None
        self.described = ""

    def start(self) -> None:
        """Start the process and wait until it has read its data; data it cannot read are an error here."""
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, self.job), daemon=True)
        process.start()
        theirs.close()
        self.process, self.pipe = process, ours
        try:
            kind, text, _ = self._next(time.monotonic() + STARTS, lambda: False)
        except TimeoutError:
            self.stop()
            raise RunError(f"the site's data were not read within {STARTS:g} s") from None
        if kind == "failed":
            self.stop()
            raise FedstillError(text.decode())
        self.described = text.decode()

    def answer(
        self, head: bytes, body: bytes | None, seconds: float, given_up: Callable[[], bool]
    ) -> tuple[bytes, bytes | None]:
        """The site's answer; `Cancelled` as soon as `given_up()`, an error when it takes longer than `seconds`."""
        if self.process is None or not self.process.is_alive():
            self.start()
        assert self.pipe is not None
        try:
            _put(self.pipe, "question", head, body)
            _, answer, upload = self._next(time.monotonic() + seconds, given_up)
        except (TimeoutError, Cancelled, RunError, OSError) as error:
            self.stop()
            if isinstance(error, TimeoutError):
                raise RunError(f"ended: it took longer than {seconds:g} s") from None
            if isinstance(error, OSError):
                raise RunError("the site's worker died") from None
            raise
        return answer, upload

    def stop(self) -> None:
        """End the process at once: what it has written stays whole, since files are written in one piece."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None

    def _next(self, until: float, given_up: Callable[[], bool]) -> Said:
        """The next thing the worker says that is not a report."""
        assert self.pipe is not None
        while True:
            if self.pipe.poll(LOOK):
                try:
                    message = _take(self.pipe)
                except EOFError:
                    raise RunError("the site's worker died; it may have run out of memory") from None
                if message[0] != "report":
                    return message
                self.report(message[1].decode())
            elif given_up():
                raise Cancelled
            elif time.monotonic() > until:
                raise TimeoutError


def _work(pipe: Connection, job: Job) -> None:
    """A worker's life: questions until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # to be told by its parent
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    _hold_down(job)
    from fedstill.flower.site import Site

    def report(text: str) -> None:
        _put(pipe, "report", text.encode())

    try:
        known = (job.model, job.public, job.device, job.policy, report, job.reading, job.key)
        site = Site(job.name, job.data, job.state, *known)
    except Exception as error:
        text = str(error) if isinstance(error, FedstillError) else f"{type(error).__name__}: {error}"
        _put(pipe, "failed", text.encode())
        return
    samples, classes = len(site.own.train), ", ".join(site.own.class_names[:20])
    _put(pipe, "ready", f"{samples} samples, classes {classes}, model {job.model}".encode())
    with contextlib.suppress(EOFError, OSError):
        while True:
            _, head, body = _take(pipe)
            _put(pipe, "answer", *site.answer(head, body))


def _hold_down(job: Job) -> None:
    """Let this process have no more memory than the policy allows: a turn that asks for more is refused.

    Devices other than the cpu map far more than they use, so they are left alone.
    """
    if job.policy.memory_bytes and job.device == "cpu" and sys.platform == "linux":
        import resource  # Windows has none

        resource.setrlimit(resource.RLIMIT_DATA, (job.policy.memory_bytes, job.policy.memory_bytes))


def _put(pipe: Connection, kind: str, first: bytes, second: bytes | None = None) -> None:
    pipe.send_bytes(json.dumps({"kind": kind, "pieces": 1 if second is None else 2}).encode())
    pipe.send_bytes(first)
    if second is not None:
        pipe.send_bytes(second)


def _take(pipe: Connection) -> Said:
    header = json.loads(pipe.recv_bytes())
    return header["kind"], pipe.recv_bytes(), pipe.recv_bytes() if header["pieces"] == 2 else None
