"""Rounds with their lines: where clients train in other processes, a round is examined while they do the next one."""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from fedstill.core.loop import Round, Transport
from fedstill.transports.processes import forking

Row = dict[str, Any]


class Sitting:
    """A round's exam on another thread. It can be waited for again by whoever was interrupted in waiting."""

    def __init__(self, row: Callable[[], Row]) -> None:
        self._row = row
        self._line: Row | None = None
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def take(self) -> None:
        """Make the line; no worker is forked meanwhile."""
        try:
            with forking:
                self._line = self._row()
        except BaseException as error:
            self._error = error
        self._ended.release()

    def waited(self) -> Row:
        """The line. Of the exam's time only what was waited for counts: the rest was the clients'."""
        began = time.perf_counter()
        while self._line is None and self._error is None:
            self._ended.acquire(timeout=0.1)  # an interrupt may come between the lock and its news
        if self._error is not None:
            raise self._error
        assert self._line is not None
        self._line["seconds"]["evaluate"] = time.perf_counter() - began
        return self._line


def examined(
    done: Iterator[Round], link: Transport, row: Callable[[Round], Row], last: int
) -> Iterator[tuple[Round, Row]]:
    """Every round with its line, in order; `row` makes one, and `last` is the number of the last round.

    Where this process is idle while clients train, a round comes when the next one has ended, and `row` is called on
    another thread; `trained` in its line then says how many rounds had been trained. A round that was trained is not
    lost when the next one fails or is interrupted: it comes first.
    """
    exams: queue.SimpleQueue[Sitting | None] = queue.SimpleQueue()
    threading.Thread(target=_examine, args=(exams,), daemon=True).start()
    try:
        now = next(done, None)
        while now is not None:
            if not link.idle or now.number == last:
                yield now, row(now)
                now = next(done, None)
                continue
            exam = Sitting(partial(row, now))
            exams.put(exam)
            try:
                after = next(done)
                line = exam.waited()
            except BaseException:
                yield now, exam.waited()
                raise
            yield now, line | {"trained": after.number + 1}
            now = after
    finally:
        exams.put(None)


def _examine(exams: "queue.SimpleQueue[Sitting | None]") -> None:
    """A thread's life: one exam after another, with less right to a core than clients have: a round waits for these."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + 5)
    for exam in iter(exams.get, None):
        exam.take()
