"""Transports by name: each registers a function that opens it for a run's clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedstill.core.loop import Party, Transport
from fedstill.core.method import Env, Method
from fedstill.core.registry import Registry
from fedstill.core.shelf import Shelf


@dataclass(frozen=True)
class Clients:
    """Whom a transport has to reach, and how the run wants it done."""

    method: Method[Any, Any, Any, Any]
    env: Env
    party: Callable[[int], Party]
    """A client's data, by its number."""
    states: Shelf
    """What the clients kept from earlier rounds."""
    active: int
    """How many clients a round has, at most."""
    workers: str
    """The experiment's `workers`: a number, `auto`, `inline` or `threads`."""
    experiment: Mapping[str, Any]
    """The experiment's settings as plain values, for transports whose clients read the data themselves."""


class Opened(Transport, Protocol):
    """A transport that has to be closed at the end of the run."""

    def close(self) -> None:
        """Stop whatever it started."""


transports: Registry[Any] = Registry("transport")
"""Functions `Clients -> Opened`, by the name that the experiment's `transport` gives."""
