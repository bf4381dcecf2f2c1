"""Killed at random moments, with a second process that wants to go on meanwhile, a run ends to the same bits.

Three kills here; `FEDSTILL_KILLS=30` asks for more.
"""

import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

from smallest import same_bits, small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.experiment.lock import writer
from fedstill.experiment.run import resume, start
from fedstill.experiment.rundir import RunDir

KILLS = int(os.environ.get("FEDSTILL_KILLS", "3"))
ROUNDS = 12 * KILLS


def plan() -> Any:
    return small_experiment(small_method("fedkf", local_steps=1), rounds=ROUNDS, active=2, samples=200)


def go_on(runs: Path) -> None:
    """Start the run, or go on with it; leave when somebody else has it."""
    try:
        if (runs / "killed" / "experiment.json").exists():
            resume(runs / "killed")
        else:
            start(plan(), out=runs, name="killed")
    except UsageError as error:
        os._exit(7 if "is writing there" in str(error) or "holds a run already" in str(error) else 1)
    os._exit(0)


def test_random_kills_change_no_bit(runs: Path) -> None:
    chance = random.Random(1)
    context = multiprocessing.get_context("fork")
    killed, refused = 0, 0
    while killed < KILLS:
        pair = [context.Process(target=go_on, args=(runs,)) for _ in range(2)]
        for process in pair:
            process.start()
        time.sleep(chance.uniform(0.0, 1.2))
        while (held := writer(runs / "killed")) is None and any(process.is_alive() for process in pair):
            time.sleep(0.01)
        for process in pair:
            if held is not None and process.pid == held.pid:
                process.kill()
                killed += 1
        for process in pair:  # the other one may have been refused, or have taken over; it is stopped too
            process.join(chance.uniform(0.0, 1.2))
            killed += process.exitcode is None
            process.kill()
            process.join()
            refused += process.exitcode == 7
        assert held is not None, "the run came to its end before it was killed often enough"
    done = resume(runs / "killed")
    assert [row["round"] for row in done.rows] == list(range(1, ROUNDS + 1))
    whole = start(plan(), out=runs, name="whole")
    states = [RunDir.open(runs / name).latest()[0] for name in ("killed", "whole")]
    assert same_bits(states[0].server, states[1].server)  # type: ignore[union-attr]
    assert all(same_bits(states[0].clients[k], states[1].clients[k]) for k in states[1].clients)  # type: ignore[union-attr]
    assert [row["models"] for row in done.rows] == [row["models"] for row in whole.rows]
