"""The work that every contestant does: data, model, clients and rounds, and how it is timed.

It needs numpy and torch alone, so that a contestant can use it in an environment of its own.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """One workload: `data` is a file with train and test arrays, normalised; clients have equal parts, in order."""

    name: str
    data: str
    clients: int
    active: int
    samples: int
    """Of each client."""
    epochs: int
    batch: int
    lr: float
    rounds: int
    warm: int
    """Rounds before the clock counts; nor does the last one count, in which some examine their models."""
    seed: int = 1
    public: int = 0
    """Public samples, for workloads that have some: the first of the test samples; the rest are the test."""

    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x and y to train on (clients × samples of them), x and y to test on."""
        return _arrays(self.data)

    def part(self, client: int) -> slice:
        """Where a client's samples are."""
        return slice(client * self.samples, (client + 1) * self.samples)

    def active_in(self, t: int) -> list[int]:
        """The clients of a round."""
        return sorted(np.random.default_rng((self.seed, t)).choice(self.clients, self.active, replace=False).tolist())

    def model(self) -> nn.Module:
        """LeNet-5 with ReLU and max-pooling on 28 × 28, or logistic regression: as one would write them."""
        torch.manual_seed(self.seed)
        if self.name == "tiny":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

        def block(inputs: int, outputs: int, padding: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]

        layers = [*block(1, 6, 2), *block(6, 16, 0), nn.Flatten(), nn.Linear(400, 120), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


@cache
def _arrays(file: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is in a file, read once in every process: workers of Flower's get everything else anew with each message."""
    with np.load(file) as data:
        return tuple(torch.from_numpy(data[name]) for name in ("x", "y", "x_test", "y_test"))  # type: ignore[return-value]


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    model.eval()
    with torch.no_grad():
        hits = [int((model(a).argmax(-1) == b).sum()) for a, b in zip(x.split(500), y.split(500), strict=True)]
    return sum(hits) / len(y)


Contestant = Callable[[Work, Callable[[], None]], float]
"""Does the work, calls `mark` at the end of every round, and returns the final model's accuracy on the test samples."""


def timed(contestant: Contestant) -> None:
    """Do the work that the command line names, and print what it took as the last line, in JSON."""
    work = Work(**json.loads(Path(sys.argv[1]).read_text()))
    marks: list[float] = []
    began = time.perf_counter()
    reached = contestant(work, lambda: marks.append(time.perf_counter()))
    counted = marks[work.warm - 1 : work.rounds - 1]
    if len(marks) < work.rounds:
        raise SystemExit(f"only {len(marks)} of {work.rounds} rounds were marked")
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {
        "seconds": (counted[-1] - counted[0]) / (len(counted) - 1),
        "whole": marks[-1] - began,
        "cpu": sum(u.ru_utime + u.ru_stime for u in usage),
        "peak": max(_own_peak(), usage[1].ru_maxrss / 1024),
        "accuracy": reached,
        "rounds": work.rounds,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # some contestants leave processes and threads behind that would wait


def _own_peak() -> float:
    """The most memory that this process had, in MiB; `getrusage` would count what started it, too."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))


def plainly(work: Work) -> str:
    """The work as JSON, for `timed`."""
    return json.dumps(asdict(work))
