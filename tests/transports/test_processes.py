"""Worker processes: replaced when they die, gone with their parent, and honest about errors."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from smallest import small_experiment, small_method

from fedstill.core.errors import RunError
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party
from fedstill.experiment.run import start, transport
from fedstill.experiment.stage import stage
from fedstill.parts.attacks import Attack
from fedstill.transports import Processes


@dataclass(frozen=True)
class Killer(Attack):
    """Ends the process it runs in: the first time only, or always."""

    mark: Path
    always: bool = False

    def data(self, env: Any, data: Any) -> Any:
        if self.always or not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return data


def exchange(tmp_path: Path, attack: Any) -> tuple[list[Any], list[Any]]:
    """The replies of a round in which client 1 is attacked, and of one in which nobody is."""
    plan = small_experiment(small_method("fedavg"), workers="2", active=1.0)
    ready = stage(plan, Storage())
    honest = ready.party
    spoiled = replace(ready, party=lambda k: Party(honest(k).data, (attack,) if k == 1 else ()))
    server = plan.method.init_server(ready.env)
    downs = {k: plan.method.download(ready.env.at(0, k), server) for k in range(6)}
    with transport(plan, spoiled, ready.env.shelf("clients")) as link:
        found = link.exchange(ready.env.at(0), downs)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        expected = link.exchange(ready.env.at(0), downs)
    return found, expected


def test_a_dead_workers_client_is_tried_once_more(tmp_path: Path) -> None:
    found, expected = exchange(tmp_path, Killer(tmp_path / "died"))
    assert [r.error for r in found] == [None] * 6
    for a, b in zip(found, expected, strict=True):
        assert all((a.upload.weights[n] == t).all() for n, t in b.upload.weights.items())


def test_then_counted_as_missing(tmp_path: Path) -> None:
    found, _ = exchange(tmp_path, Killer(tmp_path / "died", always=True))
    assert [r.client for r in found if r.error] == [1]
    assert found[1].error == "its worker died, twice"


class Broken(Attack):
    def data(self, env: Any, data: Any) -> Any:
        raise ValueError("the data are gone")


@pytest.mark.parametrize("workers", ["inline", "2"])
def test_an_error_in_a_turn_stops_the_run_with_one_line(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_experiment(small_method("fedavg"), workers=workers)
    ready = stage(plan, Storage())
    broken = replace(ready, party=lambda k: Party(ready.party(k).data, (Broken(),)))
    monkeypatch.setattr("fedstill.experiment.run.stage", lambda *_: broken)
    with pytest.raises(RunError, match=r"client \d failed in round 1: ValueError: the data are gone"):
        start(plan, out=None)


def test_closing_leaves_no_process() -> None:
    plan = small_experiment(small_method("fedavg"), workers="2")
    ready = stage(plan, Storage())
    pool = Processes(plan.method, ready.party, ready.env.shelf("clients"), ready.env, 2)
    pids = [w.process.pid for w in pool.workers]
    assert all(psutil.pid_exists(pid) for pid in pids)
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_no_worker_survives_its_parent(tmp_path: Path) -> None:
    script = (
        "import fedstill as fs\n"
        "fs.run('fedavg', data='digits', clients=4, active=1.0, rounds=10**6, workers='2', out=None)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 240
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
