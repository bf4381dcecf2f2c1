"""Time to accuracy, in virtual time, of asynchronous rounds against synchronous ones, where clients' speeds differ.

    python benchmarks/async_rounds.py [--method fedavg] [--sigma 1] [--seeds 3]

Digits over 20 clients (Dirichlet, α = 0.3), 10 of them at their turns at the same time, log-normal speeds: the unit is
a turn of the median client. Synchronous rounds wait for the slowest of ten; asynchronous steps are made of so many
replies as `buffer` says. Every run has as many clients' turns. Virtual time does not depend on the machine or its load.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import fedstill as fs
from fedstill.experiment.result import Result, principal

CLIENTS, ACTIVE, ROUNDS = 20, 10, 30
TARGETS = (0.8, 0.9, 0.93)


def run(method: str, seed: int, sigma: float, buffer: int | None) -> Result:
    """One run: synchronous where there is no buffer."""
    pace: dict[str, Any] = {"name": "sync"} if buffer is None else {"name": "async", "buffer": buffer}
    steps = ROUNDS if buffer is None else ROUNDS * ACTIVE // buffer
    settings: dict[str, Any] = {"data": "digits", "clients": CLIENTS, "active": ACTIVE, "alpha": 0.3}
    pace["speeds"] = {"name": "log-normal", "sigma": sigma}
    learning = {"name": method, "epochs": 2, "batch": 16, "lr": 0.05}
    return fs.run(learning, **settings, seed=seed, rounds=steps, pace=pace, out=None, workers="inline")


def times(results: Sequence[Result], target: float) -> str:
    """Mean time to the target over seeds; how many did not reach it."""
    found = [result.time_to(principal(result.models), "accuracy", target) for result in results]
    known = [time for time in found if time is not None]
    if not known:
        return "–"
    return f"{fmean(known):.1f}" + (f" ({len(found) - len(known)} never)" if len(known) < len(found) else "")


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--method", default="fedavg")
    words.add_argument("--sigma", type=float, default=1.0)
    words.add_argument("--seeds", type=int, default=3)
    asked = words.parse_args()
    head = [f"to {100 * target:g} %" for target in TARGETS]
    print(f"{asked.method}, σ = {asked.sigma:g}, {asked.seeds} seeds, virtual time")
    print(f"{'':<18}" + "".join(f"{text:>14}" for text in [*head, "in all", "accuracy"]))
    for buffer in (None, 5, 3, 1):
        results = [run(asked.method, seed, asked.sigma, buffer) for seed in range(1, asked.seeds + 1)]
        last = fmean(result.last(principal(result.models))["accuracy"] for result in results)
        cells = [times(results, target) for target in TARGETS]
        cells += [f"{fmean(result.time or 0.0 for result in results):.1f}", f"{100 * last:.1f} %"]
        title = "synchronous" if buffer is None else f"async, buffer {buffer}"
        print(f"{title:<18}" + "".join(f"{text:>14}" for text in cells), flush=True)


if __name__ == "__main__":
    main()
