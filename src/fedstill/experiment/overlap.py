"""Rounds with their lines: where clients train in other processes, a round is examined while they do the next one."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedstill.core.loop import Round, Transport

Row = dict[str, Any]

_examining = threading.RLock()
"""A worker that is to be replaced is forked between two exams: a lock that a thread held would stay locked in it."""
os.register_at_fork(before=_examining.acquire, after_in_parent=_examining.release, after_in_child=_examining.release)


def examined(done: Iterator[Round], link: Transport, row: Callable[[Round], Row]) -> Iterator[tuple[Round, Row]]:
    """Every round with its line, in order; `row` makes one.

    Where this process is idle while clients train, a round comes when the next one has ended, and `row` is called on
    another thread. A round that was trained is not lost when the next one fails: it comes first.
    """
    with ThreadPoolExecutor(1, initializer=_step_back) as thread:
        before: tuple[Round, Future[Row]] | None = None
        while True:
            try:
                now = next(done, None)
            except BaseException:
                if before is not None:
                    yield before[0], before[1].result()
                raise
            if before is not None:
                yield before[0], before[1].result()
            if now is None:
                return
            if link.idle:
                before = now, thread.submit(_alone, row, now)
            else:
                before = None
                yield now, row(now)


def _alone(row: Callable[[Round], Row], done: Round) -> Row:
    with _examining:
        return row(done)


def _step_back() -> None:
    """Let this thread, and those it starts, take the time that clients leave: a round waits for the last of them."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
