"""`workers = auto`: processes as long as they help."""

from typing import Any

from fedstill.transports.adaptive import Adaptive
from fedstill.transports.inline import Inline
from fedstill.transports.processes import Processes


class Workers(Processes):
    """Has nobody to stop."""

    def __init__(self) -> None:
        self.method: Any = None
        self.party: Any = None
        self.states: Any = {3: "kept"}
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_turns_shorter_than_the_way_to_a_worker_are_taken_here_from_the_fourth_round_on() -> None:
    """With workers 2 × 5 ms, here 2 × 4 ms. The first round, in which workers are not yet warm, does not count."""
    workers = Workers()
    link = Adaptive(workers)
    link.judge(0.001, 1.0)
    link.judge(0.005, 0.004)
    assert link.inner is workers
    link.judge(0.005, 0.004)
    assert isinstance(link.inner, Inline)
    assert workers.closed
    assert link.states == {3: "kept"}, "what clients kept goes along"


def test_workers_that_help_stay() -> None:
    """With workers 2 × 5 ms, here 2 × 8 ms: later rounds, however short, change nothing."""
    workers = Workers()
    link = Adaptive(workers)
    for _ in range(3):
        link.judge(0.005, 0.008)
    link.judge(1.0, 0.001)
    assert link.inner is workers
    assert not workers.closed
