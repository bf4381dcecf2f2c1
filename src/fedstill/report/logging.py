"""A run's metrics into TensorBoard, MLflow, Weights & Biases or Trackio while it goes: extras, imported when needed."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from fedstill.core.errors import UsageError, extra
from fedstill.experiment.config import Experiment
from fedstill.experiment.metrics import Scorer, Shown
from fedstill.experiment.stage import Stage
from fedstill.experiment.watcher import Together, Watcher


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """A round's numbers by name: metrics of every model, bytes, seconds, and single numbers among the facts."""
    numbers = {f"{model}/{key}": value for model, scores in row["models"].items() for key, value in scores.items()}
    numbers |= {f"bytes/{way}": sum(fields.values()) for way, fields in row["bytes"].items()}
    numbers |= {f"seconds/{phase}": spent for phase, spent in row["seconds"].items()}
    numbers |= {f"facts/{name}": value for name, value in row.get("facts", {}).items()}
    numbers["clients/missing"] = len(row.get("missing", {}))
    return {
        name: float(v)
        for name, v in numbers.items()
        if isinstance(v, int | float) and not isinstance(v, bool) and v == v
    }


class Logger(Watcher):
    """A watcher that has to be closed."""

    def close(self, failed: bool) -> None:
        """The run has ended, or failed."""


class TensorBoard(Logger):
    """Writes event files into the run's folder, `tensorboard/`."""

    def __init__(self) -> None:
        with extra("tensorboard", "log = tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self.make: Any = SummaryWriter
        self.writer: Any = None

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Open the event file; rounds that are run again replace those logged before."""
        self.writer = self.make(str((folder or Path("runs")) / "tensorboard"), purge_step=first + 1 if first else None)

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the round."""
        for name, value in scalars(row).items():
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def close(self, failed: bool) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()


class MLflow(Logger):
    """Logs to wherever MLFLOW_TRACKING_URI says, else to MLflow's own default."""

    def __init__(self) -> None:
        with extra("mlflow", "log = mlflow"):
            import mlflow
        self.mlflow: Any = mlflow
        self.open = False

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Start an MLflow run with the experiment's settings as parameters."""
        self.mlflow.set_experiment("fedstill")
        self.mlflow.start_run(run_name=folder.name if folder else experiment.title)
        self.open = True
        self.mlflow.log_params({name: str(value)[:500] for name, value in flat(experiment.plain()).items()})

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the round."""
        self.mlflow.log_metrics(scalars(row), step=row["round"])

    def close(self, failed: bool) -> None:
        """End the MLflow run."""
        if self.open:
            self.mlflow.end_run("FAILED" if failed else "FINISHED")


class Board(Logger):
    """Logs to a board that is spoken to as Weights & Biases is: `init`, `log`, `finish`."""

    module: ClassVar[str]
    """The library, which is the extra's name too."""

    def __init__(self) -> None:
        with extra(self.module, f"log = {self.module}"):
            self.board: Any = import_module(self.module)
        self.open = False

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Open a run of the project `fedstill` with the experiment's settings."""
        name = folder.name if folder else experiment.title
        self.board.init(project="fedstill", name=name, config=flat(experiment.plain()))
        self.open = True

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the round."""
        self.board.log(scalars(row), step=row["round"])

    def close(self, failed: bool) -> None:
        """End the board's run."""
        if self.open:
            self.board.finish()


class Trackio(Board):
    """Logs to Trackio: on this machine, or where its own settings say."""

    module = "trackio"


class WeightsAndBiases(Board):
    """Logs to Weights & Biases, as whoever is signed in there (`wandb login`); `WANDB_MODE=offline` keeps it here."""

    module = "wandb"

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[Shown] = []
        self.defined: set[str] = set()

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Open a run, and know which of its metrics are to grow and which to shrink."""
        super().started(experiment, stage, folder, first)
        self.metrics = Scorer.of(experiment.metric, experiment.metrics).shown

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the round; the best that the board keeps of a metric is its largest value, or its smallest."""
        for model in (name for name in row["models"] if name not in self.defined):
            for metric in self.metrics:
                self.board.define_metric(f"{model}/{metric.key}", summary="max" if metric.direction > 0 else "min")
            self.defined.add(model)
        super().round(row)

    def close(self, failed: bool) -> None:
        """End the board's run, and say if it failed."""
        if self.open:
            self.board.finish(exit_code=int(failed))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names.

    >>> flat({"method": {"name": "fedavg", "lr": 0.1}, "rounds": 3})
    {'method.name': 'fedavg', 'method.lr': 0.1, 'rounds': 3}
    """
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        dotted |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return dotted


LOGGERS: dict[str, type[Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def logged(watcher: Watcher, log: str | None) -> AbstractContextManager[Watcher]:
    """The watcher, together with the logger asked for; closed at the end."""
    if log is not None and log not in LOGGERS:
        raise UsageError(f"log = {log!r}: must be one of {', '.join(LOGGERS)}")
    return _logged(watcher, log)


@contextmanager
def _logged(watcher: Watcher, log: str | None) -> Iterator[Watcher]:
    if log is None:
        yield watcher
        return
    logger = LOGGERS[log]()
    failed = True
    try:
        yield Together(watcher, logger)
        failed = False
    finally:
        logger.close(failed)
