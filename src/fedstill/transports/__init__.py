"""How a round reaches the clients: in this process, in worker processes, or over a network."""

from fedstill.transports.colluding import Colluding
from fedstill.transports.dropping import Dropping
from fedstill.transports.inline import Inline
from fedstill.transports.processes import Processes

__all__ = ["Colluding", "Dropping", "Inline", "Processes"]
