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


def exchange(attack: Any, together: bool) -> tuple[list[Any], list[Any]]:
    """The replies of a round in which client 1 is attacked, and of one in which nobody is.

    `together`: turns are taken to be short, so that several go in one message.
    """
    plan = small_experiment(small_method("fedavg"), workers="2", active=1.0)
    ready = stage(plan, Storage())
    honest = ready.party
    spoiled = replace(ready, party=lambda k: Party(honest(k).data, (attack,) if k == 1 else ()))
    server = plan.method.init_server(ready.env)
    downs = dict.fromkeys(range(6), plan.method.download(ready.env.at(0), server))
    with transport(plan, spoiled, ready.env.shelf("clients")) as link:
        assert isinstance(link, Processes)
        link.typical = 1e-4 if together else 1.0
        found = link.exchange(ready.env.at(0), downs)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        expected = link.exchange(ready.env.at(0), downs)
    return found, expected


@pytest.mark.parametrize("together", [False, True])
def test_a_dead_workers_client_is_tried_once_more(tmp_path: Path, together: bool) -> None:
    found, expected = exchange(Killer(tmp_path / "died"), together)
    assert [r.error for r in found] == [None] * 6
    for a, b in zip(found, expected, strict=True):
        assert all((a.upload.weights[n] == t).all() for n, t in b.upload.weights.items())


@pytest.mark.parametrize("together", [False, True])
def test_then_counted_as_missing(tmp_path: Path, together: bool) -> None:
    found, _ = exchange(Killer(tmp_path / "died", always=True), together)
    assert [r.client for r in found if r.error] == [1]
    assert found[1].error == "its worker died, twice"


def test_short_turns_go_together_where_all_get_the_same_and_every_worker_gets_as_many_messages() -> None:
    plan = small_experiment(small_method("fedavg"), workers="2", active=1.0)
    ready = stage(plan, Storage())
    env = replace(ready.env, sizes=(6, 5, 4, 3, 2, 1))
    same = dict.fromkeys(range(6), "one download")
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        assert isinstance(link, Processes)
        alone = [[0], [1], [2], [3], [4], [5]]
        assert link._bundles(env, same) == alone  # nothing is known of their turns yet
        link.typical = 0.001
        assert link._bundles(env, same) == [[0, 2, 4], [1, 3, 5]]
        link.typical = 0.005  # six of them take 15 ms on each of two workers: two messages for each
        assert link._bundles(env, same) == [[0, 4], [1, 5], [2], [3]]
        link.typical = 0.02
        assert link._bundles(env, same) == alone
        link.typical = 0.001
        assert link._bundles(env, {k: f"a download for {k}" for k in range(6)}) == alone


def test_who_took_longest_last_time_starts_first_and_before_that_who_has_most_samples() -> None:
    plan = small_experiment(small_method("fedavg"), workers="2", active=1.0)
    ready = stage(plan, Storage())
    env = replace(ready.env, sizes=(3, 9, 5, 5, 1, 1))
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        assert isinstance(link, Processes)
        assert link._order(env, dict.fromkeys(range(6))) == [1, 2, 3, 0, 4, 5]
        link.spent = {0: 0.1, 1: 0.2, 4: 0.7}
        assert link._order(env, dict.fromkeys(range(6))) == [1, 2, 3, 0, 4, 5]
        assert link._order(env, dict.fromkeys((0, 1, 4))) == [4, 1, 0]


class Patient(Processes):
    """Reads an answer only when the worker has taken out its next client's samples."""

    taken: Path

    def _finish(self, worker: Any, env: Any, clients: Any) -> Any:
        deadline = time.monotonic() + 60
        while len(self.taken.read_text()) < min(clients[0] + 2, 6):
            assert time.monotonic() < deadline, "it waits and does nothing"
            time.sleep(0.01)
        yield from super()._finish(worker, env, clients)


def test_a_worker_that_waits_takes_out_the_samples_of_its_next_client_once(tmp_path: Path) -> None:
    plan = small_experiment(small_method("fedavg"), active=1.0)
    ready = stage(plan, Storage())
    server = plan.method.init_server(ready.env)
    downs = dict.fromkeys(range(6), plan.method.download(ready.env.at(0), server))
    env = replace(ready.env, sizes=(60, 50, 40, 30, 20, 10))  # the order of their turns
    taken = tmp_path / "taken"
    taken.touch()

    def party(client: int) -> Party:
        with taken.open("a") as log:
            log.write(str(client))
        return ready.party(client)

    pool = Patient(plan.method, party, env.shelf("clients"), env, 1)
    pool.taken = taken
    try:
        found = pool.exchange(env.at(0), downs)
    finally:
        pool.close()
    assert taken.read_text() == "012345"
    assert [reply.error for reply in found] == [None] * 6


def test_who_comes_next_is_whom_the_others_leave() -> None:
    plan = small_experiment(small_method("fedavg"), workers="2", active=1.0)
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        assert isinstance(link, Processes)
        assert [link._likely(left) for left in ([[1], [2, 5], [3]], [[3], [4]], [[4]], [])] == [2, 4, None, None]


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
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert alive == []
