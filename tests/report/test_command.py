"""The command on the page makes the same experiment."""

import shlex
from typing import Any

import pytest

from fedstill import cli
from fedstill.experiment import run as runs
from fedstill.experiment.config import Experiment, experiment
from fedstill.report.command import command

PLANS: list[dict[str, Any]] = [
    {"method": "fedavg"},
    {
        "method": {"name": "fedkf", "gamma": 0.5, "gather": {"name": "remember", "start": "seen"}},
        "data": "digits",
        "alpha": 0.01,
    },
    {
        "method": {"name": "fedprox", "mu": 0.1},
        "partition": {"name": "dominant", "alpha": 1.0},
        "active": 4,
        "clients": 9,
        "seed": 7,
    },
    {
        "method": "fedtkd",
        "models": ["cnn1", "cnn2"],
        "server_model": "cnn1",
        "public": 0.2,
        "local_test": 0.0,
        "samples": 300,
    },
    {"method": "fedavg", "data": ["a.npz", "b.npz"], "clients": 2, "active": 1.0},
    {"method": "fedavg", "attack": {"name": "logit-flip"}, "malicious": [1, 3], "per_class": True, "drop": 0.25}
    | {"method": "fedtkd", "model": "mlp"},
]


@pytest.mark.parametrize("settings", PLANS)
def test_the_command_says_everything_that_is_not_usual(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = experiment(settings)
    told: list[Experiment] = []

    def start(plan: Experiment, **_: Any) -> None:
        told.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "start", start)
    words = shlex.split(command(plan.plain()))
    assert words[:2] == ["fedstill", "run"]
    with pytest.raises(SystemExit):
        cli.main(words[1:])
    assert told[0].plain() == plan.plain()


def test_objects_cannot_be_typed() -> None:
    plan = {**experiment({"method": "fedavg"}).plain(), "data": "<list>"}
    assert command(plan).startswith("# from Python")
