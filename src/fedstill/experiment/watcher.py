"""Who follows a run: the base of all callbacks.

The terminal's table, the loggers and what a notebook shows are watchers; so is whatever a user writes:

    class Best(Watcher):
        def round(self, row):
            if row["models"]["active"]["amp"] > 0.9:
                raise StopRun("good enough")

    fedstill.run("fedavg", watcher=[Best(), ...])
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.experiment.config import Experiment
from fedstill.experiment.result import Result
from fedstill.experiment.stage import Stage


class Watcher:
    """The base of all callbacks: told of a run's start, of every round, and of its end. This one does nothing.

    Override what you need and give it to `run(watcher=...)`; raise `StopRun` in `round` to end the run.
    """

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Data and models are ready.

        Args:
            experiment: what is run.
            stage: who has which data, which model and which exam.
            folder: where the run is written; None: nowhere.
            first: the first round to come, from 0.
        """

    def round(self, row: Mapping[str, Any]) -> None:
        """A round has ended; `row` is its line of metrics, as in `Result.rows`."""

    def note(self, text: str) -> None:
        """`text` is something the user should know."""

    def ended(self, result: Result) -> None:
        """The run has come to its end, with this `result`; not called where it was interrupted or failed."""


class StopRun(Exception):
    """Raised in a watcher's `round`: the run ends here in good order, with a checkpoint and a result.

    Its text says why, and stands in the result.
    """


class Together(Watcher):
    """Several watchers, told one after the other."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.started(experiment, stage, folder, first)

    def round(self, row: Mapping[str, Any]) -> None:
        """Tell all; a wish to stop is passed on when all have heard of the round."""
        stop: StopRun | None = None
        for watcher in self.watchers:
            try:
                watcher.round(row)
            except StopRun as wish:
                stop = stop or wish
        if stop is not None:
            raise stop

    def note(self, text: str) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.note(text)

    def ended(self, result: Result) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.ended(result)


Watchers = Watcher | Sequence[Watcher] | None
"""What a user gives: one, several, or none."""


def together(watchers: Watchers) -> Watcher:
    """One watcher for whatever a user gave."""
    if isinstance(watchers, Watcher):
        return watchers
    return Together(*(watchers or ()))
