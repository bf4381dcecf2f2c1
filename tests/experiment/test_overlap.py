"""A round is examined while the next one trains: in order, to the same bits, and nothing is lost or left over."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import RunError
from fedstill.experiment import overlap
from fedstill.experiment.overlap import examined
from fedstill.experiment.watcher import StopRun, Watcher

IDLE, BUSY = SimpleNamespace(idle=True), SimpleNamespace(idle=False)
PLAN: dict[str, Any] = {"data": "digits", "clients": 6, "active": 0.5, "alpha": 0.5, "model": "mlp", "seed": 3}


def done(*numbers: int) -> list[Any]:
    return [SimpleNamespace(number=number) for number in numbers]


def line(one: Any) -> dict[str, Any]:
    return {"round": one.number + 1}


def test_the_next_round_trains_while_one_is_examined_and_both_come_in_order() -> None:
    seen = threading.Event()

    def rounds() -> Iterator[Any]:
        yield from done(0)
        assert seen.wait(10), "the first round is examined before the second has ended"
        yield from done(1)

    def row(one: Any) -> dict[str, Any]:
        seen.set()
        return line(one)

    lines = [found for _, found in examined(rounds(), IDLE, row)]
    assert lines == [{"round": 1}, {"round": 2}]


def test_where_clients_train_in_this_process_a_round_is_examined_here_before_the_next_begins() -> None:
    began: list[int] = []
    threads = set()

    def rounds() -> Iterator[Any]:
        for one in done(0, 1):
            began.append(one.number)
            yield one

    def row(one: Any) -> dict[str, Any]:
        threads.add(threading.current_thread())
        assert began[-1] == one.number
        return line(one)

    assert [found["round"] for _, found in examined(rounds(), BUSY, row)] == [1, 2]
    assert threads == {threading.current_thread()}


def test_a_round_that_fails_does_not_take_the_one_before_with_it() -> None:
    def rounds() -> Iterator[Any]:
        yield from done(0)
        raise RunError("client 3 failed")

    told: list[dict[str, Any]] = []
    with pytest.raises(RunError, match="client 3 failed"):
        told.extend(found for _, found in examined(rounds(), IDLE, line))
    assert told == [{"round": 1}]


def test_what_goes_wrong_in_an_exam_is_raised() -> None:
    def row(one: Any) -> dict[str, Any]:
        raise RunError(f"no exam of round {one.number + 1}")

    with pytest.raises(RunError, match="no exam of round 1"):
        list(examined(iter(done(0, 1)), IDLE, row))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_exams_take_only_the_time_that_clients_leave() -> None:
    here = os.getpriority(os.PRIO_PROCESS, 0)
    levels = [level for _, level in examined(iter(done(0)), IDLE, lambda one: {"nice": os.getpriority(0, 0)})]
    assert levels == [{"nice": 19}]
    assert os.getpriority(os.PRIO_PROCESS, 0) == here


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_worker_is_forked_between_two_exams() -> None:
    """A lock that the exam holds at that moment would never open in the child."""
    began, order = threading.Event(), []

    def row(one: Any) -> dict[str, Any]:
        began.set()
        time.sleep(0.3)
        order.append("examined")
        return line(one)

    def rounds() -> Iterator[Any]:
        yield from done(0)
        assert began.wait(10)
        if not (child := os.fork()):
            os._exit(0 if overlap._examining.acquire(timeout=5) else 1)
        order.append("forked")
        assert os.waitpid(child, 0)[1] == 0

    list(examined(rounds(), IDLE, row))
    assert order == ["examined", "forked"]


class Stopping(Watcher):
    """Has seen enough after the second round."""

    def round(self, row: Any) -> None:
        if row["round"] == 2:
            raise StopRun("enough")


@pytest.mark.parametrize("method", ["fedkf", "scaffold"])
def test_a_stopped_run_keeps_nothing_of_the_round_that_had_begun(method: str, tmp_path: Path) -> None:
    """Stopped after two rounds of four it leaves what a run of two leaves, and goes on to the same bits."""
    settings = {"name": method, "epochs": 1}
    whole = fedstill.run(settings, **PLAN, rounds=4, workers="inline", out=tmp_path, name="whole")
    short = fedstill.run(settings, **PLAN, rounds=2, workers="inline", out=tmp_path, name="short")
    stopped = fedstill.run(settings, **PLAN, rounds=4, workers="2", out=tmp_path, name="stopped", watcher=Stopping())
    assert [row["models"] for row in stopped.rows] == [row["models"] for row in short.rows]
    pictures = [folder / "gallery.safetensors" for folder in (tmp_path / "short", tmp_path / "stopped")]
    assert pictures[0].exists() == (method == "fedkf")
    if pictures[0].exists():
        assert pictures[0].read_bytes() == pictures[1].read_bytes()
    resumed = fedstill.resume(tmp_path / "stopped")
    assert [row["models"] for row in resumed.rows] == [row["models"] for row in whole.rows]
