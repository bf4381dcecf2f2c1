"""How a round reaches the clients: in this process, in worker processes, or over a network."""

from fedstill.transports.dropping import Dropping
from fedstill.transports.inline import Inline
from fedstill.transports.processes import Processes

__all__ = ["Dropping", "Inline", "Processes"]
