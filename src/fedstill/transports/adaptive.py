"""Worker processes where they help: turns shorter than the way to a worker and back are taken in this process."""

import time
from collections.abc import Mapping
from typing import Any

from fedstill.core.method import Env, Reply
from fedstill.transports.around import Around
from fedstill.transports.inline import Inline
from fedstill.transports.processes import Processes

WARM_UP, TRIAL = 1, 3
"""The first round is not looked at, as every worker then does things for the first time; those up to the third are."""


class Adaptive(Around):
    """Begins with worker processes, and leaves them for this process if that would have been faster.

    Turns in this process take the sum of the clients' seconds; with workers a round takes what the clock says. The
    bits are the same either way. It never goes back: processes cannot be forked safely from one that has trained.
    """

    inner: Processes | Inline

    def __init__(self, workers: Processes) -> None:
        super().__init__(workers)
        self.seen = 0
        self.with_workers = 0.0
        self.here = 0.0

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its turn; replies come in the order of `downs`."""
        began = time.perf_counter()
        replies = self.inner.exchange(env, downs)
        if isinstance(self.inner, Processes):
            self.judge(time.perf_counter() - began, sum(reply.seconds for reply in replies))
        return replies

    def judge(self, with_workers: float, here: float) -> None:
        """Note a round's seconds, with workers and as they would have been here; after the trial, decide."""
        self.seen += 1
        if not WARM_UP < self.seen <= TRIAL:
            return
        self.with_workers += with_workers
        self.here += here
        if self.seen == TRIAL and self.here < self.with_workers and isinstance(self.inner, Processes):
            self.inner.close()
            self.inner = Inline(self.inner.method, self.inner.party, self.inner.states)

    def close(self) -> None:
        """Stop the workers, where there are any."""
        self.inner.close()
