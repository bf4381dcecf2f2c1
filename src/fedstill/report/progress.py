"""What the terminal says of many runs: before (how long they will take) and while they go."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError
from fedstill.experiment import batch, estimate
from fedstill.experiment.batch import Job, News
from fedstill.experiment.config import identity

EVERY = 10.0
"""Seconds between two lines on the same run."""


def say(text: str) -> None:
    """A line on stderr: stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def teller() -> Callable[[News], None]:
    """A line when a run starts, ends or fails, and now and then between."""
    told: dict[Path, float] = {}

    def tell(news: News) -> None:
        path = news.job.path
        name = f"{path.parent.name}/{path.name}"
        if news.what == "round" and news.row is not None:
            if time.monotonic() - told.get(path, 0.0) < EVERY:
                return
            say(f"  {name}: round {news.row['round']} of {news.job.plan.rounds}")
        else:
            words = {"kept": "finished before", "done": "finished", "failed": f"failed: {news.reason}"}
            say(f"{name}: {words.get(news.what, news.what)}")
        told[path] = time.monotonic()

    return tell


def forecast(cells: Sequence[tuple[str, Sequence[Job]]], at_once: int | None) -> list[str]:
    """What would run, and about how long: a few steps of every different kind of run are measured."""
    known: dict[str, float | str] = {}
    lines, total, unknown, seen, waiting = [], 0.0, 0, set(), 0
    for label, jobs in cells:
        left = [job for job in jobs if job.path not in seen and not batch.finished(job.path)]
        note = "the same as above" if all(job.path in seen for job in jobs) else "nothing left to do"
        seen |= {job.path for job in jobs}
        waiting += len(left)
        if left:
            plan = left[0].plan
            kind = _kind(plan.plain())
            if kind not in known:
                try:
                    known[kind] = estimate.round_seconds(plan)
                except FedstillError as error:
                    known[kind] = str(error)
            cost = known[kind]
            if isinstance(cost, str):
                note, unknown = "unknown time (see below)", unknown + len(left)
            else:
                note = f"about {span(cost * plan.rounds)} each"
                total += cost * plan.rounds * len(left)
        lines.append(f"{label}: {len(left)} of {len(jobs)} runs, {note}")
    workers = max(1, min(at_once or batch.cores(), waiting))
    more = f", and {unknown} runs of unknown length" if unknown else ""
    reasons = dict.fromkeys(cost for cost in known.values() if isinstance(cost, str))
    lines += [f"unknown time: {reason}" for reason in reasons]  # once each, however many cells it keeps waiting
    return [*lines, f"in all about {span(total / workers)} with {workers} at once{more}"]


def _kind(settings: Mapping[str, Any]) -> str:
    """What decides the time of a round: all but who holds what, who is malicious, and numbers that only weigh."""
    method = {name: value for name, value in settings["method"].items() if not isinstance(value, float)}
    rest = identity(settings, "partition", "seed", "rounds", "attack", "malicious")
    return json.dumps({**rest, "method": method}, sort_keys=True)


def span(seconds: float) -> str:
    """A time for the eye.

    >>> span(12), span(600), span(9000)
    ('12 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
