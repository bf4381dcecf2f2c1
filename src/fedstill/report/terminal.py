"""A run as it is seen in a terminal: a live table while it goes, a summary at the end. Quiet where nobody looks."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedstill.core.value import changes
from fedstill.experiment.config import Experiment
from fedstill.experiment.result import Result
from fedstill.experiment.stage import Stage
from fedstill.experiment.watcher import Watcher

SHOWN = 12


class Live(Watcher):
    """Follows a run on stderr: a table that grows on a terminal, plain lines (or nothing, `quiet`) elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.rows: list[Mapping[str, Any]] = []
        self.view: RichLive | None = None
        self.folder: Path | None = None
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
        )
        self.told = 0.0

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.view is not None:
            self.view.stop()
        if self.folder is not None and error is not None:
            self.console.print(
                f"stopped after round {len(self.rows)}; go on with: fedstill resume {self.folder}", soft_wrap=True
            )

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Say what runs, and open the table."""
        self.folder = folder
        extra = ", ".join(f"{k}={v}" for k, v in changes(experiment.method).items())
        crowd = f"{experiment.clients} clients, {experiment.active_count} active, seed {experiment.seed}"
        title = f"{experiment.title}{f' ({extra})' if extra else ''} on {stage_name(experiment)}, {crowd}"
        self.task = self.progress.add_task(experiment.title, total=experiment.rounds, completed=first)
        if not self.quiet:
            self.console.print(title, soft_wrap=True, highlight=False)
            if self.console.is_terminal:
                self.view = RichLive(console=self.console, auto_refresh=False)
                self.view.start()

    def round(self, row: Mapping[str, Any]) -> None:
        """Add a round to what is shown."""
        self.rows.append(row)
        if self.quiet:
            return
        if self.view is not None:
            self.progress.update(self.task, completed=row["round"])
            self.view.update(Group(self._table(), self.progress), refresh=True)
        elif time.monotonic() - self.told > 10:  # not a terminal: a line now and then
            self.told = time.monotonic()
            scores = "  ".join(f"{n}: AMP {m['amp']:.3f} WLP {m['wlp']:.3f}" for n, m in row["models"].items())
            self.console.print(f"round {row['round']}  {scores}", soft_wrap=True, highlight=False)

    def note(self, text: str) -> None:
        """A line above the table."""
        self.console.print(f"note: {text}", soft_wrap=True, highlight=False)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        names = list(self.rows[-1]["models"]) or next(
            (list(r["models"]) for r in reversed(self.rows) if r["models"]), []
        )
        table.add_column("round", justify="right")
        for name in names:
            for metric in ("AMP ↑", "FM ↓", "WLP ↑"):
                table.add_column(f"{name}\n{metric}", justify="right")
        table.add_column("up", justify="right")
        table.add_column("seconds", justify="right")
        for row in self.rows[-SHOWN:]:
            scores = [row["models"].get(n, {}) for n in names]
            cells = [number(s.get(m), m) for s in scores for m in ("amp", "fm", "wlp")]
            table.add_row(
                str(row["round"]), *cells, size(sum(row["bytes"]["up"].values())), f"{sum(row['seconds'].values()):.1f}"
            )
        return table


def stage_name(experiment: Experiment) -> str:
    """The data's name."""
    return experiment.data if isinstance(experiment.data, str) else "own data"


def show_result(result: Result) -> None:
    """The end of a run, on stdout."""
    console = Console(file=sys.stdout)
    table = Table(title=None, box=None, pad_edge=False)
    for column in ("model", "AMP ↑", "FM ↓", "WLP ↑", "worst client", "global test", "best AMP", "at round"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in result.models:
        last, best = result.last(name), result.best(name)
        each = [(a, k) for k, a in enumerate(last["accuracy_per_client"]) if a is not None]
        worst = str(min(each)[1]) if each else "–"
        table.add_row(
            name, number(last["amp"]), number(last["fm"], "fm"), number(last["wlp"]), worst, number(last["accuracy"]),
            number(best["amp"]), str(best["round"]),
        )  # fmt: skip
    console.print(table)
    total = result.bytes()
    console.print(
        f"{len(result.rows)} rounds in {result.seconds:.1f} s; {size(total['down'])} down, {size(total['up'])} up"
        + (f"; {result.run_dir}" if result.run_dir else ""),
        soft_wrap=True,
        highlight=False,
    )


def number(value: float | None, metric: str = "") -> str:
    """A metric for the eye: four digits, FM in thousandths."""
    if value is None or value != value:
        return "–"
    return f"{value:.2e}" if metric == "fm" else f"{value:.4f}"


def size(count: float) -> str:
    """Bytes for the eye."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
