"""Rounds that are examined while the next one trains against rounds that are examined before it: how much faster?

    python benchmarks/overlap.py [--record]

FedAvg with LeNet-5 on 5,000 digits, 20 clients, two epochs, two workers, an exam of every model after every round. With
three equal clients a round leaves one core idle for a while, with clients that differ (α = 0.1) for another, with four
equal ones hardly at all. Both ways are measured in turn, several times; what is printed are ratios of medians.
"""

import statistics
import time
from typing import Any

from measured import machine, note

import fedstill
from fedstill.experiment.watcher import Watcher
from fedstill.transports.processes import Processes

COMMON: dict[str, Any] = {"data": "mnist-5k", "clients": 20, "model": "lenet5", "rounds": 20, "workers": "2", "seed": 1}
CASES: dict[str, dict[str, Any]] = {
    "three equal": {"active": 0.15, "partition": "iid"},
    "four that differ": {"active": 0.2, "alpha": 0.1},
    "four equal": {"active": 0.2, "partition": "iid"},
}


class Clock(Watcher):
    """From the first round's beginning to the last one's end."""

    began = spent = 0.0

    def started(self, *told: Any) -> None:
        """The stage is set."""
        self.began = time.perf_counter()

    def ended(self, result: Any) -> None:
        """All is done."""
        self.spent = time.perf_counter() - self.began


def timed(case: dict[str, Any], overlapping: bool) -> tuple[float, list[Any]]:
    """Seconds of a run, and its metrics round by round."""
    Processes.idle = overlapping
    clock = Clock()
    method = {"name": "fedavg", "epochs": 2}
    result = fedstill.run(method, out=None, progress=False, watcher=clock, **COMMON, **case)
    return clock.spent, [row["models"] for row in result.rows]


def main() -> None:
    about = machine()
    faster = {}
    for name, case in CASES.items():
        times: dict[bool, list[float]] = {True: [], False: []}
        rows: dict[bool, list[Any]] = {}
        for _ in range(5):
            for overlapping in (True, False):
                spent, rows[overlapping] = timed(case, overlapping)
                times[overlapping].append(spent)
        assert rows[True] == rows[False], "the same bits"
        faster[name] = statistics.median(times[False]) / statistics.median(times[True])
        print(f"{name}: {faster[name]:.2f}× faster")
    note("overlap", faster, about)


if __name__ == "__main__":
    main()
