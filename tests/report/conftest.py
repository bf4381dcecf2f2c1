"""Runs that the report's tests look at: made once."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedstill.experiment.run import start

from conftest import small_experiment


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedKF on digits, seeds 1 and 2, three rounds."""
    out = tmp_path_factory.mktemp("comparison")
    for name in ("fedavg", "fedkf"):
        light = {"name": name, "epochs": 2, "lr": 0.1, "batch": 32} | ({"noise": 8, "channels": 4} if name == "fedkf" else {})
        for seed in (1, 2):
            start(small_experiment(light, rounds=3, seed=seed), out=out, name=f"{name}-{seed}")
    return out


def rows(run: Path) -> list[dict[str, Any]]:
    """A run's metrics.jsonl, read by hand."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
