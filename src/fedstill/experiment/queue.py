"""The queue: what no record answers yet is run, most telling cells first, until the budget is spent.

`presets/queue.toml` names the cells that come first; then come all other cells of all presets, seed by seed. A run that
is stopped goes on where it was; a run that ends becomes a record at once, so that killing the queue loses nothing.
"""

import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, UsageError, unknown
from fedstill.experiment import batch
from fedstill.experiment.archive import Archive
from fedstill.experiment.batch import Job, News
from fedstill.experiment.centralised import student_record
from fedstill.experiment.config import Experiment
from fedstill.experiment.lock import writing
from fedstill.experiment.presets import Preset, presets, read_preset
from fedstill.experiment.records import question, record_of
from fedstill.experiment.reproduce import STUDENTS, Entry, plan

RECORDED = ("table", "curves", "times", "clusters", "centralised")
"""Kinds of presets whose cells a record can answer."""
SEEDS = 3
_TURN = {"preset", "rows", "columns", "seeds", "rounds"}


@dataclass(frozen=True)
class Turn:
    """Cells that come next: of a preset, by labels; `rounds` instead of the preset's.

    `seeds` are counted from the preset's first: (1, 2) are its first two.
    """

    preset: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1,)
    rounds: int | None = None


@dataclass(frozen=True)
class Asked:
    """A run that is asked for, and the cell that asks first."""

    job: Job
    cell: str
    student: Experiment | None = None
    """The student that is taught once the job, its teacher, is done."""


def turns() -> list[Turn]:
    """The order in `queue.toml`, then every preset, first seed first."""
    text = (resources.files("fedstill.experiment.presets") / "queue.toml").read_text(encoding="utf-8")
    first = [_turn(entry) for entry in tomllib.loads(text)["turns"]]
    names = [name for name in presets() if _answered(read_preset(name))]
    return first + [Turn(name, seeds=(s,)) for s in range(1, SEEDS + 1) for name in names]


def _answered(preset: Preset) -> bool:
    """Whether records answer the preset's cells; of the times of modules on the server they have no undisturbed one."""
    metrics = preset.content["metrics"]
    modules = [name for name in metrics if name.startswith("seconds:")]
    return preset.kind in RECORDED and (not modules or len(modules) < len(metrics))


def _turn(entry: Mapping[str, Any]) -> Turn:
    for key in entry:
        if key not in _TURN:
            raise unknown("key of a turn in queue.toml", key, _TURN)
    rows, columns, seeds = (
        tuple(entry.get(key, usual)) for key, usual in (("rows", ()), ("columns", ()), ("seeds", (1,)))
    )
    return Turn(entry["preset"], rows, columns, seeds, entry.get("rounds"))


def wanted(order: Sequence[Turn], archive: Archive, out: Path) -> Iterator[Asked]:
    """Every run that is asked for and has no record, once, in order; cells that cannot run here are passed over."""
    longest: dict[str, int] = {}
    for turn in order:
        preset = read_preset(turn.preset)
        entries = plan(preset, out, seeds=turn.seeds, rounds=turn.rounds, rows=turn.rows, columns=turn.columns)
        for entry in entries:
            for one in _runs(preset, entry):
                asked = one.student or one.job.plan
                about = question(asked)
                if longest.get(about, 0) < asked.rounds and archive.find(asked) is None:
                    longest[about] = asked.rounds
                    yield one


def _runs(preset: Preset, entry: Entry) -> Iterator[Asked]:
    cell = f"{preset.name} · {entry.cell.row} × {entry.cell.column}"
    for asked, job in zip(entry.plans, entry.jobs, strict=False):
        student = asked if preset.kind in STUDENTS and entry.cell.model == "student" else None
        yield Asked(job, cell, student)


def carry_on(
    waiting: Iterable[Asked],
    archive: Archive,
    out: Path,
    *,
    budget: float,
    at_once: int | None = None,
    tell: Callable[[News], None] = lambda news: None,
) -> dict[Path, str]:
    """Run what waits (`wanted`) for `budget` seconds and add a record of each; returns why runs failed, by folder."""
    if archive.folder.resolve() == out.resolve():  # each has a lock of its own
        raise UsageError(f"results = {archive.folder}: must be another folder than that of the runs")
    until = time.monotonic() + budget
    asked: dict[Path, list[Asked]] = {}  # a teacher and its students are asked for by one run
    for one in waiting:
        asked.setdefault(one.job.path, []).append(one)

    unread: dict[Path, str] = {}

    def unanswered(job: Job) -> bool:
        """Another queue may have added a record meanwhile."""
        archive.again()
        return any(archive.find(one.student or one.job.plan) is None for one in asked[job.path])

    def recorded(news: News) -> None:
        if news.what in ("kept", "done"):
            try:
                for one in asked[news.job.path]:
                    _record(one, archive, (news.row or {}).get("cpu_seconds"))
            except FedstillError as error:  # one run that cannot be read stops no other
                unread[news.job.path] = str(error)
        tell(news)

    out.mkdir(parents=True, exist_ok=True)
    with writing(out, wait=5):
        failed = batch.run_all([ones[0].job for ones in asked.values()], at_once, recorded, until, unanswered)
    return {**failed, **unread}


def _record(one: Asked, archive: Archive, spent: float | None) -> None:
    """Add the records of a finished run, and of the student that it teaches."""
    if archive.again().find(one.job.plan) is None:
        archive.add(record_of(one.job.path, one.cell, spent))
    if one.student is not None:
        archive.add(student_record(one.student, one.job.path, one.cell))


def seconds(text: str) -> float:
    """A budget in seconds.

    >>> seconds("2h"), seconds("90m"), seconds("1h30m"), seconds("45s")
    (7200.0, 5400.0, 5400.0, 45.0)
    """
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    if not parts or not any(parts.groups()):
        raise UsageError(f"budget = {text!r}: must be a time like 2h, 90m or 1h30m")
    hours, minutes, rest = (float(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + rest
