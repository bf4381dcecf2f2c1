"""Runs that the report's tests look at, made once, and their metrics read by hand."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fedstill.experiment.config import experiment
from fedstill.experiment.run import start

PLAN = {"data": "digits", "samples": 400, "clients": 6, "active": 0.5, "alpha": 0.5, "workers": "inline"}
LIGHT: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg", "epochs": 2, "lr": 0.1, "batch": 32},
    "fedkf": {"name": "fedkf", "epochs": 2, "lr": 0.1, "batch": 32, "noise": 8, "channels": 4},
}


_room = tempfile.TemporaryDirectory()


@cache
def made() -> Path:
    """FedAvg and FedKF on digits, seeds 1 and 2, three rounds: made when first asked for."""
    out = Path(_room.name)
    for name, method in LIGHT.items():
        for seed in (1, 2):
            start(experiment({"method": method, **PLAN, "rounds": 3, "seed": seed}), out=out, name=f"{name}-{seed}")
    return out


def rows(run: Path) -> list[dict[str, Any]]:
    """A run's metrics.jsonl, read by hand."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
