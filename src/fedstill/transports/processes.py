"""Clients take their turns in persistent worker processes, one thread each.

Workers are forked, so data and models are shared with the parent until written. Messages go through memory that both
share, where they fit, else through a pipe as the bytes of records: either way the other side gets a copy, as over a
network. Whose turn is likely to take longest starts first; where turns are short, several go in one message. While a
worker waits for its next message it takes out the samples of the client it is likely to get. A worker that dies is
replaced and its clients tried once more, each by itself; a worker whose parent is gone ends itself.
"""

import ctypes
import gc
import json
import math
import multiprocessing
import os
import signal
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedstill.core import record
from fedstill.core.errors import Abstains, RunError
from fedstill.core.method import Env, Method, Reply
from fedstill.core.shelf import Shelf
from fedstill.core.turn import Party, turn
from fedstill.transports.inline import describe, longest_first
from fedstill.transports.shared import Slot

BUNDLE = 0.01
"""Seconds of turns that may go in one message. Waking a worker takes long by the measure of shorter turns; longer ones
are worth a message each: whoever is free first takes the next client."""

forking = threading.RLock()
"""Held while a worker is forked. Who computes on another thread holds it too: a lock of torch's, say, that is closed at
that moment would never open in the worker."""


@dataclass(frozen=True)
class Slots:
    """Where downloads and states go down, and where answers come up."""

    down: Slot = field(default_factory=Slot)
    up: Slot = field(default_factory=Slot)


@dataclass(eq=False)
class Worker:
    """A process, our end of its pipe, the clients it is busy with, and the download it was last given."""

    process: Any
    pipe: Connection
    slots: Slots
    clients: list[int] = field(default_factory=list)
    download: Any = None


def forks() -> bool:
    """Can worker processes be forked here? Not on Windows, and not where `FEDSTILL_FORK=0` forbids it."""
    return "fork" in multiprocessing.get_all_start_methods() and os.environ.get("FEDSTILL_FORK") != "0"


class Processes:
    """Runs turns in `workers` processes; the same bits as `Inline`."""

    idle = True

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
        self.typical = math.inf
        """Seconds of a turn of the round before: the median."""
        self.spent: dict[int, float] = {}
        """Seconds of every client's last turn."""

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its turn on the next free worker; replies come in the order of `downs`."""
        waiting = self._bundles(env, downs)
        tries = dict.fromkeys(downs, 0)
        replies: dict[int, Reply[Any]] = {}
        new: dict[int, Any] = {}
        while len(replies) < len(downs):
            for worker in self.workers:
                if not worker.clients and waiting:
                    self._start(worker, env, waiting.pop(0), downs, self._likely(waiting))
            busy = {w.pipe: w for w in self.workers if w.clients}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                clients, worker.clients = worker.clients, []
                try:
                    for state, reply in self._finish(worker, env, clients):
                        replies[reply.client] = reply
                        if state is not None:
                            new[reply.client] = state
                except (EOFError, ConnectionError):
                    self._dismiss(worker)
                    self.workers[self.workers.index(worker)] = self._hire()
                    for client in clients:
                        tries[client] += 1
                        if tries[client] < 2:
                            waiting.insert(0, [client])
                        else:
                            replies[client] = Reply(client, env.sizes[client], None, error="its worker died, twice")
        spent = {k: reply.seconds for k, reply in replies.items() if reply.error is None}
        self.spent.update(spent)
        self.typical = statistics.median(spent.values()) if spent else self.typical
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

    def _order(self, env: Env, downs: Mapping[int, Any]) -> list[int]:
        """Who is likely to take longest comes first: by the last turns, where all had one, else by samples."""
        by_samples = longest_first(env, downs)
        if not all(client in self.spent for client in downs):
            return by_samples
        return sorted(by_samples, key=lambda client: -self.spent[client])

    def _bundles(self, env: Env, downs: Mapping[int, Any]) -> list[list[int]]:
        """Who goes together in one message: one client each, unless turns are short and all get the same download.

        Every worker is to get as many messages, and of each message's clients as many that take long.
        """
        order = self._order(env, downs)
        alike = len({id(down) for down in downs.values()}) == 1
        if not alike or self.typical > BUNDLE:
            return [[client] for client in order]
        messages = math.ceil(len(order) * self.typical / (len(self.workers) * BUNDLE)) * len(self.workers)
        return [order[place::messages] for place in range(min(messages, len(order)))]

    def _likely(self, waiting: Sequence[Sequence[int]]) -> int | None:
        """Whom a worker that starts now is likely to get next: every other one will have been free before it."""
        others = len(self.workers) - 1
        return waiting[others][0] if others < len(waiting) else None

    def _hire(self) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        slots = Slots()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_work, args=(theirs, slots, self.method, self.env, self.party), daemon=True)
        with forking:
            process.start()
        theirs.close()
        return Worker(process, ours, slots)

    def _dismiss(self, worker: Worker) -> None:
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()

    def _start(
        self, worker: Worker, env: Env, clients: list[int], downs: Mapping[int, Any], likely: int | None
    ) -> None:
        """Tell a worker of its next clients, who all get the same download, and who is likely to come after them."""
        down = downs[clients[0]]
        known = worker.download is down
        letter = (None if known else down, tuple(self.states.get(client) for client in clients))
        shared = worker.slots.down.put(letter)
        worker.clients, worker.download = clients, down
        job = {"round": env.round, "clients": clients, "known": known, "letter": shared, "likely": likely}
        try:
            worker.pipe.send_bytes(json.dumps(job).encode())
            if shared is None:
                worker.pipe.send_bytes(record.dumps(letter))
        except (BrokenPipeError, ConnectionError):
            pass  # the worker is dead: reading from it will say so

    def _finish(self, worker: Worker, env: Env, clients: Sequence[int]) -> Iterator[tuple[Any, Reply[Any]]]:
        """Every client's next state and reply."""
        head = json.loads(worker.pipe.recv_bytes())
        shared = head["answers"]
        answers = record.loads(worker.pipe.recv_bytes()) if shared is None else worker.slots.up.take(shared)
        for client, told, (state, upload) in zip(clients, head["turns"], answers, strict=True):
            if "error" in told:
                fault = RunError(f"client {client} failed in round {env.round + 1}: {told['error']}")
                fault.add_note(told["traceback"])
                raise fault
            size, abstains = env.sizes[client], told.get("abstains")
            yield state, Reply(client, size, upload, error=abstains, seconds=told.get("seconds", 0.0))


def _work(
    pipe: Connection, slots: Slots, method: Method[Any, Any, Any, Any], env: Env, party: Callable[[int], Party]
) -> None:
    """A worker's life: turns until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    _keep_memory()
    gc.freeze()  # what the parent made stays: looking through it for garbage would also copy its pages
    down: Any = None
    ready: dict[int, Party] = {}

    def prepared(client: int) -> Party:
        return ready.pop(client, None) or party(client)

    while True:
        try:
            job = json.loads(pipe.recv_bytes())
            shared = job["letter"]
            new, states = record.loads(pipe.recv_bytes()) if shared is None else slots.down.take(shared)
            down = down if job["known"] else new
        except (EOFError, OSError):
            return
        turns, answers = [], []
        for client, state in zip(job["clients"], states, strict=True):
            told, answer = _taken(method, env.at(job["round"], client), prepared, state, down)
            turns.append(told)
            answers.append(answer)
        shared = slots.up.put(answers)
        pipe.send_bytes(json.dumps({"turns": turns, "answers": shared}).encode())
        if shared is None:
            pipe.send_bytes(record.dumps(answers))
        ready.clear()  # who was likely went elsewhere
        likely = job["likely"]
        if likely is not None and not pipe.poll():
            with suppress(Exception):  # what is wrong with a client's data is said in its turn
                ready[likely] = party(likely)


def _taken(
    method: Method[Any, Any, Any, Any], env: Env, party: Callable[[int], Party], state: Any, down: Any
) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """A client's turn: what there is to say of it, and its next state and upload."""
    assert env.client is not None
    began = time.perf_counter()
    try:
        answer = turn(method, env, party(env.client), state, down)
        told: dict[str, Any] = {"seconds": time.perf_counter() - began}
        record.flatten(answer, {})  # what cannot be part of a record is this client's fault, not its neighbours'
    except Abstains as why:
        return {"abstains": str(why)}, (None, None)
    except Exception as error:
        return {"error": describe(error), "traceback": traceback.format_exc()}, (None, None)
    return told, answer


def _keep_memory() -> None:
    """Tell glibc not to give freed memory back: every step would ask for it again, page by page."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    trim_threshold, mmap_threshold = -1, -3  # as in malloc.h
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**25)


def end_with(parent: int) -> None:
    """Leave as soon as the parent is gone, even in the middle of a turn."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
