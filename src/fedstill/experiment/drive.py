"""The driver: the loop over an open transport; every round is examined, written and told."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from fedstill.core.loop import Round, Transport, rounds
from fedstill.experiment.config import Experiment
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.stage import Stage
from fedstill.experiment.watcher import Watcher


class Examines(Protocol):
    """Who makes a round's line of metrics."""

    def row(self, done: Round) -> dict[str, Any]:
        """Everything about a round, as plain numbers, text and lists."""


def drive(
    plan: Experiment,
    ready: Stage,
    link: Transport,
    examiner: Examines,
    folder: RunDir | None,
    checkpoint: Checkpoint | None,
    watcher: Watcher,
) -> Result:
    """Drive the loop over an open transport."""
    first = checkpoint.round if checkpoint else 0
    rows = folder.rows() if folder else []
    watcher.started(plan, ready, folder.path if folder else None, first)
    for note in ready.notes:
        watcher.note(note)
    server = checkpoint.server if checkpoint else None
    sample = partial(active, plan)
    for done in rounds(plan.method, ready.env, link, sample, plan.rounds, server, first, plan.wrappers):
        row = examiner.row(done)
        rows.append(row)
        number = done.number + 1
        if folder:
            folder.append(row)
            if number % plan.checkpoint_every == 0 or number == plan.rounds:
                folder.checkpoint(Checkpoint(number, done.server, link.states))
        watcher.round(row)
    result = Result(plan.plain(), rows, folder.path if folder else None, sum(sum(r["seconds"].values()) for r in rows))
    if folder:
        folder.write("result.json", result.summary())
    return result


def active(plan: Experiment, t: int) -> list[int]:
    """The clients active in a round: m of K, uniformly, without replacement."""
    return plan.active_in(t)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for each operation: small models are faster so, and every transport gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
