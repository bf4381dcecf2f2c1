"""Who writes a run's rounds: checkpoints on a thread, while the next round's clients train."""

import threading
from collections.abc import Mapping
from typing import Any

from fedstill.experiment.rundir import Checkpoint, RunDir


class Keeper:
    """Writes rows at once and checkpoints behind the run's back, at most one at a time.

    A row is written when the checkpoint before it is on the disk: whoever is told of a round finds there what was
    there when checkpoints were waited for. What goes wrong in writing is raised at the next call, or at the end.
    """

    def __init__(self, folder: RunDir | None) -> None:
        """`folder`: None where nothing is to be written."""
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def row(self, row: Mapping[str, Any]) -> None:
        """Add a round's metrics."""
        self.wait()
        if self.folder:
            self.folder.append(row)

    def checkpoint(self, state: Checkpoint) -> None:
        """Begin to write a checkpoint. All it holds are values, which nobody changes meanwhile."""
        self.wait()
        if self.folder:
            thread = threading.Thread(target=self._write, args=(self.folder, state))
            thread.start()  # an interrupt may come here: only what was started is waited for
            self._thread = thread

    def wait(self) -> None:
        """Until everything is written; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, folder: RunDir, state: Checkpoint) -> None:
        try:
            folder.checkpoint(state)
        except Exception as error:
            self._error = error

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.wait()
        elif self._thread is not None:  # what stopped the run is told, not what it did to a checkpoint
            self._thread.join()
