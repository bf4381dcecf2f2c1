"""The driver: the loop over an open transport; every round is examined, written and told."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from fedstill.core.errors import RunError
from fedstill.core.loop import Round, Transport, rounds
from fedstill.core.shelf import Shelf
from fedstill.experiment.config import Experiment
from fedstill.experiment.health import Health, cause
from fedstill.experiment.keeper import Keeper
from fedstill.experiment.metrics import Scorer
from fedstill.experiment.overlap import examined
from fedstill.experiment.result import Result, principal
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.signature import FILE
from fedstill.experiment.stage import Stage
from fedstill.experiment.watcher import StopRun, Watcher
from fedstill.parts.timetable import Timetable


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
) -> tuple[Result, Shelf]:
    """Drive the loop over an open transport, to its last round or until it is stopped.

    Returns the result, and what the clients keep after its last round.
    """
    first = checkpoint.round if checkpoint else 0
    rows = folder.rows() if folder else []
    if folder and ready.signature and not (folder.path / FILE).exists():
        ready.signature.save(folder.path)
    watcher.started(plan, ready, folder.path if folder else None, first)
    for note in ready.notes:
        watcher.note(note)
    server = checkpoint.server if checkpoint else None
    why = ""
    table = Timetable.of(plan.pace, plan.seed, ready.env.sizes, plan.active_count, rows)
    sample = partial(active, plan) if table is None else table.starting
    late = None if table is None else table.arrivals
    flight = checkpoint.flight if checkpoint else None
    states = link.states
    with Keeper(folder) as keeper:
        whole = (plan.method, ready.env, link, sample, plan.rounds, server, first, plan.wrappers, late, flight)
        for done, row in examined(rounds(*whole), link, examiner.row, plan.rounds - 1):
            states = done.states
            rows.append(row | ({} if table is None else {"pace": table[done.number].plain()}))
            number = done.number + 1
            keeper.row(rows[-1])
            why = _told(plan, rows, watcher)
            if why or number % plan.checkpoint_every == 0 or number == plan.rounds:
                keeper.checkpoint(Checkpoint(number, done.server, states, done.flight))
            if why:
                break
            del done, row  # the next round trains now
    if folder and states is not link.states:  # a round was trained that nobody will hear of
        folder.rewind(len(rows))
    result = Result.of(plan.plain(), rows, folder.path if folder else None, why)
    return ended(result, plan, folder, watcher), states


def _told(plan: Experiment, rows: list[dict[str, Any]], watcher: Watcher) -> str:
    """Tell of the last round, and say why the run is to stop here (empty: it goes on)."""
    if ill := Health.of(rows[-1:]).rounds[0].line():
        watcher.note(ill)
    try:
        watcher.round(rows[-1])
    except StopRun as wish:
        return str(wish) or "stopped by a watcher"
    return "" if plan.patience is None else exhausted(rows, plan.patience, direction(plan), plan.method.judged_by)


def direction(plan: Experiment) -> int:
    """1 where a larger AMP is better, -1 where a smaller one is (of a loss, say)."""
    return next(shown.direction for shown in Scorer.of(plan.metric, plan.metrics).shown if shown.key == "amp")


def exhausted(rows: Sequence[Mapping[str, Any]], patience: int | None, sign: int = 1, own: str = "") -> str:
    """Why a run has no patience left, from its lines alone: so a run that was resumed stops in the same round.

    `sign`: see `direction`; `own`: the model that the method names as its own.

    >>> rows = [{"round": t, "models": {"overall": {"amp": amp}}} for t, amp in enumerate([0.2, 0.5, 0.4, 0.5])]
    >>> exhausted(rows, 3), exhausted(rows, 2)
    ('', 'no better AMP of overall than in round 1, for 2 evaluated rounds')
    """
    if patience is None:
        return ""
    evaluated = [row for row in rows if row["models"]]
    if not evaluated:
        return ""
    model = principal(evaluated[-1]["models"], own)
    curve = [row["models"].get(model, {}).get("amp") for row in evaluated]
    known = [float("-inf") if amp is None or amp != amp else sign * float(amp) for amp in curve]
    best = max(range(len(known)), key=known.__getitem__)
    if len(known) - 1 - best < patience:
        return ""
    return f"no better AMP of {model} than in round {evaluated[best]['round']}, for {patience} evaluated rounds"


def ended(result: Result, plan: Experiment, folder: RunDir | None, watcher: Watcher) -> Result:
    """The end of a run: a failure where no reply was ever used, else its result is written and told."""
    health = result.health
    if health.failed:
        raise RunError(f"no reply was used in {len(result.rows)} rounds ({health}): {cause(plan.method, health)}")
    if not health.well:
        watcher.note(str(health))
    if result.stopped:
        watcher.note(f"stopped after round {len(result.rows)}: {result.stopped}")
    if folder:
        folder.write("result.json", result.summary())
    watcher.ended(result)
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
