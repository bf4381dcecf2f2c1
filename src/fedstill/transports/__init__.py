"""How a round reaches the clients: in this process, in worker processes, or over a network."""

from fedstill.transports.dropping import Dropping
from fedstill.transports.inline import Inline
from fedstill.transports.local import local
from fedstill.transports.processes import Processes
from fedstill.transports.registry import Clients, transports

__all__ = ["Clients", "Dropping", "Inline", "Processes", "local", "transports"]
