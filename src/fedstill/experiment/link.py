"""The choice of a transport: what `transport` and `workers` of an experiment ask for."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fedstill.core.shelf import Shelf
from fedstill.experiment.config import Experiment
from fedstill.experiment.stage import Stage
from fedstill.parts.collusion import Collusion
from fedstill.transports import Colluding, Dropping
from fedstill.transports.registry import Opening, transports


@contextmanager
def transport(plan: Experiment, ready: Stage, states: Shelf) -> Iterator[Any]:
    """The transport that an experiment asks for, open; closed at the end."""
    opening = Opening(
        plan.method, ready.party, states, ready.env, plan.workers, plan.active_count, plan.plain(), plan.objects
    )
    inner = transports[plan.transport](opening)
    link: Any = Dropping(inner, plan.drop) if plan.drop else inner
    if isinstance(plan.attack, Collusion):
        link = Colluding(link, partial(plan.attack.conspire, malicious=plan.malicious_clients))
    try:
        yield link
    finally:
        inner.close()
