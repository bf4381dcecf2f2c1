"""What a client's turn costs beyond its training: in this process, in worker processes, and over Ray.

    python benchmarks/message.py [--record] [--without-ray]

Ten clients take a turn of one step each in every round. What a round takes beyond their training (shared among the
workers), divided by ten, is what a turn's two messages cost: writing, sending and reading the download and the state,
and the way back. Medians over rounds, the first two left out. Ray is Flower's simulation, as a cluster would run it.
"""

import os
import statistics
import sys
from typing import Any

from measured import machine, note

import fedstill as fs
from fedstill.parts.gather import Everyone

CLIENTS, ROUNDS = 10, 12
MODELS = ("mlp", "lenet5")


def cost(model: str, ways: dict[str, Any], workers: int) -> float:
    """Milliseconds a turn, beyond training."""
    common: dict[str, Any] = {"data": "digits", "clients": CLIENTS, "active": 1.0, "alpha": 100.0, "out": None}
    method = fs.FedAvg(local_steps=1, gather=Everyone())
    result = fs.run(method, model=model, rounds=ROUNDS, evaluate_every=ROUNDS, progress=False, **common, **ways)
    beyond = [
        row["seconds"]["clients"] - sum(row["client_seconds"].values()) / workers for row in list(result.rows)[2:]
    ]
    return 1000 * statistics.median(beyond) / CLIENTS


def main() -> None:
    about = machine()
    cores = os.cpu_count() or 1
    ways: dict[str, tuple[dict[str, Any], int]] = {
        "inline": ({"workers": "inline"}, 1),
        "workers": ({"workers": "2"}, 2),
        "ray": ({"transport": "flower-simulation", "workers": "2"}, min(2, cores)),
    }
    if "--without-ray" in sys.argv:
        del ways["ray"]
    numbers = {}
    for model in MODELS:
        for way, (settings, workers) in ways.items():
            numbers[f"{way}, {model}"] = cost(model, settings, workers)
            print(f"{model:9} {way:8} {numbers[f'{way}, {model}']:8.2f} ms a turn beyond training", flush=True)
    note("message", numbers, about)


if __name__ == "__main__":
    main()
