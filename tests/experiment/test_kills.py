"""Killed at random moments, with a second process that wants to go on meanwhile, a run ends to the same bits.

A process counts how often it touches a file of the run and kills itself a moment after a touch drawn by chance: so the
kills fall where files are written as well as between, on a fast machine and on a slow one. Six kills here;
`FEDSTILL_KILLS=60` asks for more.
"""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from smallest import same_bits, small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.experiment.run import resume, start
from fedstill.experiment.rundir import RunDir

KILLS = int(os.environ.get("FEDSTILL_KILLS", "6"))
ROUNDS = 6 * KILLS
REFUSED = 7


def plan(workers: str) -> Any:
    method = small_method("fedkf", local_steps=1)
    return small_experiment(method, rounds=ROUNDS, active=2, samples=200, workers=workers)


def die_after(touches: int, seconds: float, folder: Path) -> None:
    """Let this process die by SIGKILL `seconds` after it touched files in `folder` so many times."""
    left = touches

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in {"open", "os.rename", "os.remove", "os.mkdir"} and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0 and seconds == 0:
                die()
            elif left == 0:
                threading.Thread(target=die, daemon=True).start()

    def die() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def go_on(runs: Path, workers: str, touches: int, seconds: float) -> None:
    """Start the run, or go on with it, until death; leave when somebody else has it."""
    folder = runs / "killed"
    die_after(touches, seconds, folder)
    try:
        if (folder / "experiment.json").exists():
            resume(folder)
        else:
            start(plan(workers), out=runs, name="killed")
    except UsageError as error:
        os._exit(REFUSED if "is writing there" in str(error) or "holds a run already" in str(error) else 1)
    os._exit(0)


@pytest.mark.parametrize("workers", ["inline", "2"])
def test_random_kills_change_no_bit(runs: Path, workers: str) -> None:
    chance = random.Random(1)
    context = multiprocessing.get_context("fork")
    killed = 0
    while killed < KILLS:
        deaths = [(chance.randint(1, 120), chance.choice([0.0, chance.uniform(0.0, 0.02)])) for _ in range(2)]
        pair = [context.Process(target=go_on, args=(runs, workers, *death)) for death in deaths]
        for process in pair:
            process.start()
        for process in pair:
            process.join()
        ends = [process.exitcode for process in pair]
        assert set(ends) <= {-signal.SIGKILL, REFUSED}, "the run failed, or came to its end before it was killed enough"
        killed += ends.count(-signal.SIGKILL)
    done = resume(runs / "killed")
    assert [row["round"] for row in done.rows] == list(range(1, ROUNDS + 1))
    whole = start(plan("inline"), out=runs, name="whole")
    states = [RunDir.open(runs / name).latest()[0] for name in ("killed", "whole")]
    assert same_bits(states[0].server, states[1].server)  # type: ignore[union-attr]
    assert all(same_bits(states[0].clients[k], states[1].clients[k]) for k in states[1].clients)  # type: ignore[union-attr]
    assert [row["models"] for row in done.rows] == [row["models"] for row in whole.rows]
