"""A round is examined while the next one trains: in order, to the same bits, and nothing is lost or left over."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from smallest import small_experiment, small_method

import fedstill
from fedstill.core.errors import RunError
from fedstill.core.shelf import Storage
from fedstill.experiment.overlap import examined
from fedstill.experiment.run import transport
from fedstill.experiment.stage import stage
from fedstill.experiment.watcher import StopRun, Watcher

IDLE, BUSY = SimpleNamespace(idle=True), SimpleNamespace(idle=False)
PLAN: dict[str, Any] = {
    "data": "digits", "clients": 6, "active": 0.5, "alpha": 0.5, "model": "mlp", "seed": 3, "memory": 0,
}  # fmt: skip
"""No memory for clients' states: each goes to a file at once."""


def done(*numbers: int) -> list[Any]:
    return [SimpleNamespace(number=number) for number in numbers]


def line(one: Any) -> dict[str, Any]:
    return {"round": one.number + 1, "seconds": {"evaluate": 9.0}}


def test_the_next_round_trains_while_one_is_examined_and_both_come_in_order() -> None:
    seen = threading.Event()

    def rounds() -> Iterator[Any]:
        yield from done(0)
        assert seen.wait(10), "the first round is examined before the second has ended"
        yield from done(1)

    def row(one: Any) -> dict[str, Any]:
        seen.set()
        return line(one)

    lines = [found for _, found in examined(rounds(), IDLE, row, 1)]
    assert [(found["round"], found.get("trained")) for found in lines] == [(1, 2), (2, None)]
    assert lines[0]["seconds"]["evaluate"] < 5, "what was not waited for is not counted"
    assert lines[1]["seconds"]["evaluate"] == 9.0, "the last one has nothing to go on beside"


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

    assert [found["round"] for _, found in examined(rounds(), BUSY, row, 1)] == [1, 2]
    assert threads == {threading.current_thread()}


def test_a_round_that_fails_does_not_take_the_one_before_with_it() -> None:
    def rounds() -> Iterator[Any]:
        yield from done(0)
        raise RunError("client 3 failed")

    told: list[dict[str, Any]] = []
    with pytest.raises(RunError, match="client 3 failed"):
        told.extend(found for _, found in examined(rounds(), IDLE, line, 1))
    assert [found["round"] for found in told] == [1]


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Ctrl-C is heard, also where the tests run in the background and it is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_who_interrupts_while_an_exam_is_waited_for_keeps_its_round() -> None:
    def row(one: Any) -> dict[str, Any]:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)  # reaches the main thread, which waits
        time.sleep(0.3)
        return line(one)

    told: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        told.extend(found for _, found in examined(iter(done(0, 1)), IDLE, row, 1))
    assert [found["round"] for found in told] == [1]


def test_what_goes_wrong_in_an_exam_is_raised() -> None:
    def row(one: Any) -> dict[str, Any]:
        raise RunError(f"no exam of round {one.number + 1}")

    with pytest.raises(RunError, match="no exam of round 1"):
        list(examined(iter(done(0, 1)), IDLE, row, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_exams_leave_the_clients_the_larger_part_but_the_last_one_which_has_none_beside_it() -> None:
    here = os.getpriority(os.PRIO_PROCESS, 0)

    def row(one: Any) -> dict[str, Any]:
        return {**line(one), "nice": os.getpriority(os.PRIO_PROCESS, 0)}

    levels = [found["nice"] for _, found in examined(iter(done(0, 1)), IDLE, row, 1)]
    assert levels == [min(19, here + 5), here]


def test_where_priorities_are_forbidden_exams_go_on_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    assert len(list(examined(iter(done(0, 1)), IDLE, line, 1))) == 2


def test_a_worker_is_forked_between_two_exams() -> None:
    """A lock that the exam holds at that moment would never open in the worker."""
    plan = small_experiment(small_method("fedavg"), workers="2")
    ready = stage(plan, Storage())
    began, order = threading.Event(), []

    def row(one: Any) -> dict[str, Any]:
        began.set()
        time.sleep(0.3)
        order.append("examined")
        return line(one)

    def rounds() -> Iterator[Any]:
        yield from done(0)
        assert began.wait(10)
        with transport(plan, ready, ready.env.shelf("clients")):
            order.append("forked")
        yield from done(1)

    list(examined(rounds(), IDLE, row, 1))
    assert order == ["examined", "forked", "examined"]


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
    kept = [sorted(file.name for file in (tmp_path / name / "clients").glob("*")) for name in ("short", "stopped")]
    assert kept[0] == kept[1]
    resumed = fedstill.resume(tmp_path / "stopped")
    assert [row["models"] for row in resumed.rows] == [row["models"] for row in whole.rows]
