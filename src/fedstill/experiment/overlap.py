"""Rounds with their lines: where clients train in other processes, a round is examined while they do the next one."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from fedstill.core.loop import Round, Transport
from fedstill.transports.processes import forking

Row = dict[str, Any]


def examined(
    done: Iterator[Round], link: Transport, row: Callable[[Round], Row], last: int
) -> Iterator[tuple[Round, Row]]:
    """Every round with its line, in order; `row` makes one, and `last` is the number of the last round.

    Where this process is idle while clients train, a round comes when the next one has ended, and `row` is called on
    another thread; `trained` in its line then says how many rounds had been trained. A round that was trained is not
    lost when the next one fails or is interrupted: it comes first.
    """
    with ThreadPoolExecutor(1, initializer=_step_back) as thread:
        now = next(done, None)
        while now is not None:
            if not link.idle or now.number == last:
                yield now, row(now)
                now = next(done, None)
                continue
            exam = thread.submit(_between_forks, row, now)
            try:
                after = next(done)
                line = _waited(exam)
            except BaseException:
                yield now, _waited(exam)
                raise
            yield now, line | {"trained": after.number + 1}
            now = after


def _waited(exam: Future[Row]) -> Row:
    """The line of a round's exam. Of the exam's time only what was waited for counts: the rest was the clients'."""
    began = time.perf_counter()
    line = exam.result()
    line["seconds"]["evaluate"] = time.perf_counter() - began
    return line


def _between_forks(row: Callable[[Round], Row], done: Round) -> Row:
    with forking:
        return row(done)


def _step_back() -> None:
    """Let this thread, and those it starts, leave the clients the larger part of a core: a round waits for the last."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + 5)
