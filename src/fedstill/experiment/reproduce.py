"""A paper's table with one command: its cells as runs, their numbers beside the paper's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.method import methods
from fedstill.core.registry import Registry
from fedstill.experiment import batch, passes
from fedstill.experiment.archive import Archive
from fedstill.experiment.batch import Job
from fedstill.experiment.centralised import taught, teacher_plan
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.presets import Cell, Preset
from fedstill.experiment.records import record_id
from fedstill.experiment.result import Result
from fedstill.experiment.table_metrics import Beyond, Reading, Untimed, described, reading, to_report
from fedstill.parts.attacks import attacks
from fedstill.parts.gather import gathers

RECORDED_SEEDS = 5
"""So many seeds, from a preset's first on, are looked for in the records by tables, pages and the leaderboard."""
STUDENTS = ("centralised", "images")
"""Kinds of presets whose runs are those of a teacher."""
NO_TIME = "no undisturbed time"
"""What is said of a recorded run whose time is not known."""


@dataclass(frozen=True)
class Entry:
    """A cell with its experiments and runs, one for each seed; or why there are none.

    What is counted or drawn without a run (passes, partitions) has experiments alone; a student without data has the
    runs of its teacher.
    """

    cell: Cell
    plans: tuple[Experiment, ...] = ()
    jobs: tuple[Job, ...] = ()
    why_not: str = ""
    splits: Mapping[int, str] = field(default_factory=dict)
    """Seed → the fingerprint of who trains, and is tested, on which samples, of recorded runs."""


@dataclass(frozen=True)
class Number:
    """A cell's metric: ours over the seeds, and the paper's."""

    row: str
    column: str
    metric: str
    ours: Sequence[Reading]
    paper: Any
    state: str = ""
    seeds: Sequence[int] = ()
    """The seeds of `ours`, in the same order."""
    splits: Mapping[int, str] = field(default_factory=dict)
    """As its entry's."""

    @property
    def known(self) -> list[float]:
        """Our values, seed by seed, where there is one."""
        return [value for value in self.ours if isinstance(value, float)]

    @property
    def mean(self) -> float | None:
        """Our mean; None unless every seed has a value."""
        return fmean(self.known) if self.known and len(self.known) == len(self.ours) else None

    @property
    def spread(self) -> float:
        """Our standard deviation over seeds."""
        return stdev(self.known) if len(self.known) > 1 else 0.0

    @property
    def beyond(self) -> float | None:
        """The bound that every seed is beyond which did not reach its target, in the metric's unit; None without one.

        Of what should be little, each of these seeds takes more than this; of what should be much, each has less.
        """
        bounds = [value.bound for value in self.ours if isinstance(value, Beyond)]
        return (min if described(self.metric).direction < 0 else max)(bounds, default=None)

    @property
    def paper_mean(self) -> float | None:
        """The paper's mean, where it is a number."""
        value = self.paper[0] if isinstance(self.paper, list) else self.paper
        return float(value) if isinstance(value, int | float) else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.paper_mean is None else self.mean - self.paper_mean

    def plain(self) -> dict[str, Any]:
        """The number as JSON."""
        return {
            "row": self.row,
            "column": self.column,
            "metric": self.metric,
            "mean": self.mean,
            "std": self.spread if self.known else None,
            "seeds": len(self.ours),
            "not_reached": sum(isinstance(value, Beyond) for value in self.ours),
            "beyond": self.beyond,
            "paper": self.paper,
            "difference": self.difference,
            "state": self.state,
        }


def plan(
    preset: Preset,
    out: Path,
    *,
    seeds: int | Sequence[int] = 1,
    rounds: int | None = None,
    full: bool = False,
    override: Mapping[str, Any] | None = None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> list[Entry]:
    """Every cell with its runs; `rows`, `columns` choose by label (with * and ?), `override` settings of all cells.

    `seeds`: how many, or which, counted from the preset's first.
    """
    if "seed" in (override or {}):
        raise UsageError(f"--set seed: runs have seeds from {preset.first_seed} on; say how many with --seeds")
    cells = [c for c in preset.cells(full) if named(c.row, rows) and named(c.column, columns)]
    if not cells:
        labels = [f"{c.row!r} × {c.column!r}" for c in preset.cells(full)]
        raise UsageError(
            f"{preset.name}: no cell is left; there are {', '.join(labels[:6])}{' …' if len(labels) > 6 else ''}"
        )
    chosen = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    return [_entry(preset, cell, out, chosen, rounds, override or {}) for cell in cells]


def named(label: str, patterns: Sequence[str]) -> bool:
    """Whether patterns (with * and ?, case does not matter) choose a row or column of this label; no pattern: all."""
    return not patterns or any(fnmatchcase(label.lower(), pattern.lower()) for pattern in patterns)


def _entry(
    preset: Preset, cell: Cell, out: Path, seeds: Sequence[int], rounds: int | None, override: Mapping[str, Any]
) -> Entry:
    settings = {**cell.settings, **({"rounds": rounds} if rounds else {}), **override}
    settings["method"] = {**cell.settings["method"], **override.get("method", {})}
    missing = _missing(settings)
    if missing:
        return Entry(cell, why_not=missing)
    try:
        if own := to_report(cell.metrics):
            settings["metrics"] = [*settings.get("metrics", ()), *own]
        plans = tuple(experiment({**settings, "seed": preset.first_seed + number - 1}) for number in seeds)
        made = [teacher_plan(one) if preset.kind in STUDENTS else one for one in plans]
    except FedstillError as error:
        raise UsageError(f"{preset.name}, {cell.row!r} × {cell.column!r}: {error}") from None
    if preset.kind in ("partition", "passes"):
        return Entry(cell, plans)
    return Entry(cell, plans, tuple(batch.job(one, out) for one in made))


def _missing(settings: Mapping[str, Any]) -> str:
    """Which part a cell asks for that is not there; settings that nobody knows are an error instead."""
    method = settings["method"]
    asked: list[tuple[Registry[Any], Any]] = [
        (methods, method["name"]),
        (attacks, settings.get("attack")),
        (gathers, method.get("gather")),
    ]
    for registry, part in asked:
        name = part.get("name") if isinstance(part, Mapping) else part
        if name is not None and name not in registry:
            return f"{registry.kind} {name} is not available"
    return ""


def recorded(entries: Sequence[Entry], archive: Archive) -> tuple[list[Entry], dict[Path, Result]]:
    """The cells with those of their seeds that a record answers, and what the records say, by the runs' folders."""
    kept, done = [], {}
    for entry in entries:
        there, splits = [], {}
        for asked, job in zip(entry.plans, entry.jobs, strict=False):
            student = entry.cell.model == "student"
            record = archive.find(asked if student else job.plan)
            if record is not None:
                there.append((asked, job))
                splits[asked.seed] = record.split
                done[_student(job.path, asked) if student else job.path] = record.result(asked.rounds)
        why_not = entry.why_not or ("" if there or not entry.jobs else "not run yet")
        plans, jobs = tuple(asked for asked, _ in there), tuple(job for _, job in there)
        kept.append(replace(entry, plans=plans, jobs=jobs, why_not=why_not, splits=splits) if entry.jobs else entry)
    return kept, done


def _student(teacher: Path, plan: Experiment) -> Path:
    """Where a student stands among the results: a teacher's folder may have several."""
    return teacher / f"student-{record_id(plan)}"


def numbers(entries: Sequence[Entry], done: Mapping[Path, Result], failed: Mapping[Path, str]) -> list[Number]:
    """Every cell's metrics beside the paper's. A cell with a run that failed says so instead."""
    numbers = []
    for entry in entries:
        reason = entry.why_not or next((failed[j.path] for j in entry.jobs if j.path in failed), "")
        runs = zip(entry.plans, entry.jobs, strict=False)
        if not reason and any(job.path not in done and _student(job.path, plan) not in done for plan, job in runs):
            reason = "not finished"
        ours: list[Mapping[str, Reading]] = []
        if not reason:
            try:
                ours = [_readings(entry, place, entries, done) for place in range(len(entry.plans))]
            except FedstillError as error:
                reason = str(error)
        for metric in entry.cell.metrics:
            read = [(plan.seed, values[metric]) for plan, values in zip(entry.plans, ours, strict=False)]
            timed = [(seed, value) for seed, value in read if not isinstance(value, Untimed)]
            untimed = [seed for seed, value in read if isinstance(value, Untimed)]
            seeds, values = [seed for seed, _ in timed], [value for _, value in timed]
            state, paper = reason or _without_time(untimed, every=not timed), entry.cell.paper.get(metric)
            where = (entry.cell.row, entry.cell.column)
            numbers.append(Number(*where, metric, values, paper, state, seeds, entry.splits))
    return numbers


def _without_time(seeds: Sequence[int], every: bool) -> str:
    """What stands beside a time that is not known of these seeds' recorded runs."""
    if not seeds:
        return ""
    which = "" if every else f" of seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{NO_TIME}{which}"


def _readings(entry: Entry, place: int, entries: Sequence[Entry], done: Mapping[Path, Result]) -> Mapping[str, Reading]:
    """All metrics of a cell, for one seed."""
    cell, plan = entry.cell, entry.plans[place]
    if set(cell.metrics) <= set(passes.METRICS):
        return dict(passes.passes(plan)) if cell.metrics else {}
    path = entry.jobs[place].path
    if cell.model == "student":
        recorded_student = done.get(_student(path, plan))
        if recorded_student is not None:
            return {metric: recorded_student.last("student")["accuracy"] for metric in cell.metrics}
        return {metric: taught(plan, path).accuracies[-1] for metric in cell.metrics}
    model = "active" if cell.model == "teacher" else cell.model
    fedavg = next((e for e in entries if e.cell.column == cell.column and e.cell.yardstick), None)
    same = [job.path for job in fedavg.jobs if job.plan.seed == plan.seed and job.path in done] if fedavg else []
    base = (done[same[0]], fedavg.cell.model) if fedavg and same else None
    return {metric: reading(metric, done[path], model, base) for metric in cell.metrics}
