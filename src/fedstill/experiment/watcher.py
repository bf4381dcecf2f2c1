"""Who follows a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.experiment.config import Experiment
from fedstill.experiment.stage import Stage


class Watcher:
    """Who follows a run: told of its start, every round, and anything worth a line. This one says nothing."""

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """The stage is set; `first` is the first round to come."""

    def round(self, row: Mapping[str, Any]) -> None:
        """A round has ended."""

    def note(self, text: str) -> None:
        """Something the user should know."""
