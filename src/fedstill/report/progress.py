"""What the terminal says of many runs: before (how long they will take) and while they go."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedstill.core.errors import FedstillError
from fedstill.experiment import batch, estimate
from fedstill.experiment.batch import Job, News

EVERY = 10.0
"""Seconds between two lines on the same run."""


def say(text: str) -> None:
    """A line on stderr: stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def teller() -> Callable[[News], None]:
    """A line when a run starts, ends or fails, and now and then between."""
    last_line: dict[Path, float] = {}

    def tell(news: News) -> None:
        path = news.job.path
        name = f"{path.parent.name}/{path.name}"
        if news.what == "round" and news.row is not None:
            if time.monotonic() - last_line.get(path, 0.0) < EVERY:
                return
            say(f"  {name}: round {news.row['round']} of {news.job.plan.rounds}")
        else:
            words = {"kept": "finished before", "done": "finished", "failed": f"failed: {news.reason}"}
            say(f"{name}: {words.get(news.what, news.what)}")
        last_line[path] = time.monotonic()

    return tell


def forecast(cells: Sequence[tuple[str, Sequence[Job]]], at_once: int | None) -> list[str]:
    """What would run, and about how long: a few steps of every different kind of run are measured."""
    reasons: dict[str, None] = {}
    lines, total, unknown, seen, waiting = [], 0.0, 0, set(), 0
    for label, jobs in cells:
        left = [job for job in jobs if job.path not in seen and not batch.finished(job.path)]
        note = "the same as above" if all(job.path in seen for job in jobs) else "nothing left to do"
        seen |= {job.path for job in jobs}
        waiting += len(left)
        if left:
            plan = left[0].plan
            try:
                each = estimate.round_seconds(plan) * plan.rounds
                note, total = f"about {span(each)} each", total + each * len(left)
            except FedstillError as error:
                note, unknown = "unknown time (see below)", unknown + len(left)
                reasons[str(error)] = None
        lines.append(f"{label}: {len(left)} of {len(jobs)} runs, {note}")
    workers = max(1, min(at_once or batch.cores(), waiting))
    more = f", and {unknown} runs of unknown length" if unknown else ""
    lines += [f"unknown time: {reason}" for reason in reasons]  # once each, however many cells it keeps waiting
    return [*lines, f"in all about {span(total / workers)} with {workers} at once{more}"]


def span(seconds: float) -> str:
    """A time for the eye.

    >>> span(12), span(600), span(9000)
    ('12 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
