"""Clients take their turns in persistent worker processes, one thread each.

Workers are forked, so data and models are shared with the parent until written. What goes through the pipe is what
would go over a network: the bytes of records. The client with most samples starts first. A worker that dies is
replaced and its client tried once more; a worker whose parent is gone ends itself.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedstill.core import record
from fedstill.core.errors import Abstains, RunError
from fedstill.core.method import Env, Method, Reply
from fedstill.core.shelf import Shelf
from fedstill.core.turn import Party, turn
from fedstill.transports.inline import describe, longest_first


@dataclass
class Worker:
    """A process, our end of its pipe, the client it is busy with, and the download it was last given."""

    process: Any
    pipe: Connection
    client: int | None = None
    download: bytes | None = None


def forks() -> bool:
    """Can worker processes be forked here? Not on Windows, and not where `FEDSTILL_FORK=0` forbids it."""
    return "fork" in multiprocessing.get_all_start_methods() and os.environ.get("FEDSTILL_FORK") != "0"


class Processes:
    """Runs turns in `workers` processes; the same bits as `Inline`."""

    def __init__(
        self,
        method: Method[Any, Any, Any, Any],
        party: Callable[[int], Party],
        states: Shelf,
        env: Env,
        workers: int,
    ) -> None:
        self.method = method
        self.party = party
        self.states = states
        self.env = env
        self.workers = [self._hire() for _ in range(workers)]

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its turn on the next free worker; replies come in the order of `downs`."""
        waiting = longest_first(env, downs)
        tries = dict.fromkeys(downs, 0)
        replies: dict[int, Reply[Any]] = {}
        new: dict[int, Any] = {}
        written: dict[int, bytes] = {}  # by the download's identity: one that is the same for all is written once
        while len(replies) < len(downs):
            for worker in self.workers:
                if worker.client is None and waiting:
                    self._start(worker, env, waiting.pop(0), downs, written)
            busy = {w.pipe: w for w in self.workers if w.client is not None}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                client, worker.client = worker.client, None
                assert client is not None
                try:
                    state, replies[client] = self._finish(worker, env, client)
                    if state is not None:
                        new[client] = state
                except (EOFError, ConnectionError):
                    self._replace(worker)
                    tries[client] += 1
                    if tries[client] < 2:
                        waiting.insert(0, client)
                    else:
                        replies[client] = Reply(client, env.sizes[client], None, error="its worker died, twice")
        self.states = self.states.put(env.round, {k: new[k] for k in downs if k in new})
        return [replies[k] for k in downs]

    def close(self) -> None:
        """Stop all workers."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()  # it holds nothing that could be lost, and a kill is never missed
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    def _hire(self) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_work, args=(theirs, self.method, self.env, self.party), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours)

    def _replace(self, worker: Worker) -> None:
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        fresh = self._hire()
        worker.process, worker.pipe, worker.download = fresh.process, fresh.pipe, None

    def _start(
        self, worker: Worker, env: Env, client: int, downs: Mapping[int, Any], written: dict[int, bytes]
    ) -> None:
        worker.client = client
        down = downs[client]
        if id(down) not in written:
            written[id(down)] = record.dumps(down)
        known = worker.download is written[id(down)]
        worker.download = written[id(down)]
        try:
            worker.pipe.send_bytes(json.dumps({"round": env.round, "client": client, "known": known}).encode())
            worker.pipe.send_bytes(record.dumps(self.states.get(client)))
            if not known:
                worker.pipe.send_bytes(worker.download)
        except (BrokenPipeError, ConnectionError):
            pass  # the worker is dead: reading from it will say so

    def _finish(self, worker: Worker, env: Env, client: int) -> tuple[Any, Reply[Any]]:
        head = json.loads(worker.pipe.recv_bytes())
        if "abstains" in head:
            return None, Reply(client, env.sizes[client], None, error=head["abstains"])
        if "error" in head:
            fault = RunError(f"client {client} failed in round {env.round + 1}: {head['error']}")
            fault.add_note(head["traceback"])
            raise fault
        state, upload = record.loads(worker.pipe.recv_bytes())
        return state, Reply(client, env.sizes[client], upload, seconds=head["seconds"])


def _work(pipe: Connection, method: Method[Any, Any, Any, Any], env: Env, party: Callable[[int], Party]) -> None:
    """A worker's life: turns until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    _keep_memory()
    down: Any = None
    while True:
        try:
            job = json.loads(pipe.recv_bytes())
            state = record.loads(pipe.recv_bytes())
            down = down if job["known"] else record.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        here = env.at(job["round"], job["client"])
        began = time.perf_counter()
        try:
            result = turn(method, here, party(job["client"]), state, down)
            spent = time.perf_counter() - began
            answer = record.dumps(result)
        except Abstains as why:
            pipe.send_bytes(json.dumps({"abstains": str(why)}).encode())
            continue
        except Exception as error:
            failure = {"error": describe(error), "traceback": traceback.format_exc()}
            pipe.send_bytes(json.dumps(failure).encode())
            continue
        pipe.send_bytes(json.dumps({"seconds": spent}).encode())
        pipe.send_bytes(answer)


def _keep_memory() -> None:
    """Tell glibc not to give freed memory back: every step would ask for it again, page by page."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    trim_threshold, mmap_threshold = -1, -3  # as in malloc.h
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**25)


def _end_with(parent: int) -> None:
    """Leave as soon as the parent is gone, even in the middle of a turn."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
