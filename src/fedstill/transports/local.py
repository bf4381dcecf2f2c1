"""Clients on this machine: in this process, on threads, or in worker processes."""

import os

from fedstill.transports.inline import Inline
from fedstill.transports.processes import Processes
from fedstill.transports.registry import Clients, Opened, transports


@transports.register("local")
def local(clients: Clients) -> Opened:
    """Worker processes where they help: several clients a round, a CPU, and a system that can fork."""
    workers = workers_of(clients)
    alone = workers == 1 or clients.env.device.type != "cpu" or not _can_fork()
    if clients.workers in ("inline", "threads") or alone:
        threads = workers if clients.workers == "threads" else 1
        return Inline(clients.method, clients.party, clients.states, threads)
    return Processes(clients.method, clients.party, clients.states, clients.env, workers)


def workers_of(clients: Clients) -> int:
    """How many clients may take their turns at the same time."""
    cores = os.cpu_count() or 1
    asked = clients.workers
    count = cores if asked in ("auto", "threads") else 1 if asked == "inline" else int(asked)
    return min(count, clients.active)


def _can_fork() -> bool:
    return os.name == "posix"
