"""Transports by name. Each is a function from an `Opening` to an open transport, and registers itself.

A transport that lives in another room is announced by the package's `__init__`, and imported when a run asks for it:
so nobody who does not use it needs what it needs.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedstill.core.loop import Transport
from fedstill.core.method import Env, Method
from fedstill.core.registry import Registry
from fedstill.core.shelf import Shelf
from fedstill.core.turn import Party
from fedstill.transports.adaptive import Adaptive
from fedstill.transports.inline import Inline
from fedstill.transports.processes import Processes, forks


@dataclass(frozen=True)
class Opening:
    """Everything a transport may need to know before the first round."""

    method: Method[Any, Any, Any, Any]
    party: Callable[[int], Party]
    states: Shelf
    env: Env
    workers: str
    """`auto`, `inline`, `threads` or a number."""
    active: int
    """How many clients a round has."""
    experiment: Mapping[str, Any]
    """The experiment as plain settings, for whoever sets the stage again elsewhere."""
    objects: tuple[str, ...] = ()
    """Settings that were given as objects: they cannot be set again elsewhere."""

    @property
    def count(self) -> int:
        """How many clients are to take their turns at once."""
        asked = {"auto": os.cpu_count() or 1, "threads": os.cpu_count() or 1, "inline": 1}
        return min(asked.get(self.workers) or int(self.workers), self.active)


class Open(Transport, Protocol):
    """A transport that can be closed."""

    def close(self) -> None:
        """Stop whatever was started for it."""


transports: Registry[Callable[[Opening], Open]] = Registry("transport")


@transports.register("local")
def local(opening: Opening) -> Open:
    """On this machine: worker processes where they help and can be had, else turns in this process."""
    forked = opening.env.device.type == "cpu" and forks()
    if opening.workers in ("inline", "threads") or opening.count == 1 or not forked:
        threads = opening.count if opening.workers == "threads" else 1
        return Inline(opening.method, opening.party, opening.states, threads)
    workers = Processes(opening.method, opening.party, opening.states, opening.env, opening.count)
    return Adaptive(workers) if opening.workers == "auto" else workers
