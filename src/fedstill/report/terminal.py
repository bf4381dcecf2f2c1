"""A run as it is seen in a terminal: a live table while it goes, a summary at the end. Quiet where nobody looks."""

import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedstill.core.value import changes
from fedstill.experiment.config import Experiment
from fedstill.experiment.metrics import METRICS, Scorer, Shown, metrics
from fedstill.experiment.result import Result, views
from fedstill.experiment.stage import Stage
from fedstill.experiment.watcher import Watcher

FEWEST = 6
"""So many lines the live table has even on the lowest screen."""
TAKEN = 7
"""Lines of a screen that are not the live table's: its head, the progress bar, what stood before."""


@views.register("live")
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
        self.metrics = _watched(METRICS)

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.view is not None:
            self.view.stop()
        if self.folder is not None and error is not None:
            self.console.print(
                f"stopped after round {len(self.rows)}; go on with: fedstill resume {self.folder}",
                soft_wrap=True,
                markup=False,
            )

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """Say what runs, and open the table."""
        self.folder = folder
        asked = [metrics[name].key for name in experiment.metrics]
        self.metrics = _watched(Scorer.of(experiment.metric, experiment.metrics).shown, asked)
        extra = ", ".join(f"{k}={v}" for k, v in changes(experiment.method).items())
        crowd = f"{experiment.clients} clients, {experiment.active_count} active, seed {experiment.seed}"
        data = experiment.data if isinstance(experiment.data, str) else "own data"
        title = f"{experiment.title}{f' ({extra})' if extra else ''} on {data}, {crowd}"
        self.task = self.progress.add_task(experiment.title, total=experiment.rounds, completed=first)
        if not self.quiet:
            self.console.print(printable(title), soft_wrap=True, highlight=False, markup=False)
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
            scores = "  ".join(f"{name}: {self._line(scores)}" for name, scores in row["models"].items())
            self.console.print(f"round {row['round']}  {scores}", soft_wrap=True, highlight=False, markup=False)

    def note(self, text: str) -> None:
        """A line above the table."""
        self.console.print(printable(f"note: {text}"), soft_wrap=True, highlight=False, markup=False)

    def _line(self, scores: Mapping[str, Any]) -> str:
        return ", ".join(f"{m.title} {m.text(scores[m.key])} {m.unit}" for m in self.metrics)

    def _table(self) -> Table:
        """The last rounds, models side by side where the screen is wide enough for them, else below one another."""
        evaluated = [row for row in self.rows if row["models"]]
        names = list(evaluated[-1]["models"]) if evaluated else []
        wide = Table(box=None, pad_edge=False)
        wide.add_column("round", justify="right")
        for name in names:
            for metric in self.metrics:
                wide.add_column(f"{name}\n{metric.title} {metric.arrow}", justify="right", no_wrap=True)
        _add_costs(wide)
        room = max(FEWEST, self.console.height - TAKEN)
        for row in self.rows[-room:]:
            scores = [row["models"].get(name, {}) for name in names]
            cells = [metric.text(s.get(metric.key)) for s in scores for metric in self.metrics]
            wide.add_row(str(row["round"]), *cells, *_costs(row))
        fits = wide.__rich_measure__(self.console, self.console.options.update(width=10_000)).maximum
        return wide if fits <= self.console.width else self._tall(names, room)

    def _tall(self, names: Sequence[str], room: int) -> Table:
        """A line for each model and round."""
        table = Table(box=None, pad_edge=False)
        table.add_column("round", justify="right")
        table.add_column("model", overflow="ellipsis", no_wrap=True)
        for metric in self.metrics:
            table.add_column(f"{metric.title} {metric.arrow}", justify="right", no_wrap=True)
        _add_costs(table)
        for row in self.rows[-max(2, room // max(1, len(names))) :]:
            for place, name in enumerate(names):
                scores = row["models"].get(name, {})
                costs = ("", "") if place else _costs(row)
                cells = [metric.text(scores.get(metric.key)) for metric in self.metrics]
                table.add_row("" if place else str(row["round"]), Text(name), *cells, *costs)
        return table


FIRST = ("amp", "fm", "wlp")
"""The metrics that are watched while a run goes, beside those that it was asked for."""


def _watched(metrics: Iterable[Shown], asked: Collection[str] = ()) -> list[Shown]:
    return [metric for metric in metrics if metric.key in FIRST or metric.key in asked]


def _add_costs(table: Table) -> None:
    for name in ("up", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)


def _costs(row: Mapping[str, Any]) -> tuple[str, str]:
    return size(sum(row["bytes"]["up"].values())), f"{sum(row['seconds'].values()):.1f}"


def show_result(result: Result) -> None:
    """The end of a run, on stdout."""
    console = Console(file=sys.stdout)
    amp = result.metric("amp")
    lines = [["model", *(m.heading for m in result.metrics), "worst client", f"best {amp.title}", "at round"]]
    for name in result.models:
        last, best, worst = result.last(name), result.best(name), result.worst(name)
        cells = [metric.text(last.get(metric.key)) for metric in result.metrics]
        who = "–" if worst is None else (result.client_names or range(worst[0] + 1))[worst[0]]
        lines.append([name, *cells, printable(str(who)), amp.text(best["amp"]), str(best["round"])])
    console.print(_fitting(lines, console))
    total, count = result.bytes(), len(result.rows)
    console.print(
        f"{count} round{'s' * (count != 1)} in {result.seconds:.1f} s; "
        f"{size(total['down'])} down, {size(total['up'])} up" + (f"; {result.run_dir}" if result.run_dir else ""),
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _fitting(lines: Sequence[Sequence[str]], console: Console) -> Table:
    """The lines below their head, whose words stand below one another on a narrow screen; on a narrower one the whole
    table is turned on its side."""
    columns = list(zip(*lines, strict=True))
    whole = [max(map(len, column)) for column in columns]
    words = [max(len(word) for text in column for word in text.split()) for column in columns]
    fit = [widths for widths in (whole, words) if sum(widths) + 2 * (len(widths) - 1) <= console.width]
    table = Table(title=None, box=None, pad_edge=False)
    for place, name in enumerate(lines[0] if fit else columns[0]):
        justify: Literal["right", "left"] = "right" if place else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", width=fit[0][place] if fit else None)
    for line in lines[1:] if fit else columns[1:]:
        table.add_row(*map(Text, line))
    return table


def stdout(highlight: bool = True) -> Console:
    """A console for tables on stdout: as wide as the terminal, and wide enough for any table where there is none."""
    console = Console(file=sys.stdout, highlight=highlight)
    return console if console.is_terminal else Console(file=sys.stdout, highlight=highlight, width=240)


def printable(text: str) -> str:
    """Text from outside as it may stand in a terminal: what would move the cursor or colour the screen is replaced.

    >>> printable("site \x1b[2Jone")
    'site �[2Jone'
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text)


def size(count: float) -> str:
    """Bytes for the eye."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
