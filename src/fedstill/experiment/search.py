"""A search for good settings: Optuna's TPE proposes, runs with seeds of their own judge, other seeds are reported.

Nothing is kept but the runs. The sampler is seeded and hears of the trials in their order, so a search that was
stopped proposes the same again, finds these runs finished, and goes on from there.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstill.core.errors import UsageError, extra
from fedstill.experiment import batch, sweep
from fedstill.experiment.result import Result
from fedstill.experiment.sweep import Point

TUNING_SEED = 101
"""The first seed of runs that only choose settings: apart from those that are reported."""
TOGETHER = 4
"""Trials proposed at a time: always as many, so that a search is the same on any number of cores."""
WIDE = 10.0
"""A range whose ends are so many times apart is searched on a logarithmic scale."""
SAMPLER_SEED = 1

Plan = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""A point's values in, the experiment's settings with them out."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: whole ones, or on a logarithmic scale, where it says so."""

    low: float
    high: float
    whole: bool
    log: bool


@dataclass(frozen=True)
class Trial:
    """A point that was tried: its values, its runs, and its score (None: a run failed)."""

    point: Point
    score: float | None
    """AMP of the run's principal model, mean over the tuning seeds; the larger, the better."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"values": dict(self.point.values), "score": self.score, "runs": [str(j.path) for j in self.point.jobs]}


def space(grids: Sequence[str]) -> dict[str, Range | list[str]]:
    """What is searched: `name=low..high` is a range, `name=a,b,c` a choice.

    Args:
        grids: what `--grid` said. A range of whole numbers gives whole numbers; one that spans a factor of ten is
            searched on a logarithmic scale, unless it ends in `:linear` (or, where it spans less, `:log`).

    Returns:
        A range or the choices, by the setting's name.

        >>> space(["lr=0.01..1", "epochs=1..4", "gather=remember,everyone"])["lr"]
        Range(low=0.01, high=1.0, whole=False, log=True)
    """
    return {name: _range(name, values[0]) if len(values) == 1 else values for name, values in sweep.axes(grids).items()}


def _range(name: str, text: str) -> Range | list[str]:
    ends = re.fullmatch(r"(.+?)\.\.(.+?)(:log|:linear)?", text)
    if ends is None:
        return [text]
    try:
        low, high = float(ends[1]), float(ends[2])
    except ValueError:
        raise UsageError(f"--grid {name}={text}: a range must be low..high, two numbers") from None
    if not math.isfinite(high - low):
        raise UsageError(f"--grid {name}={text}: a range must end; low and high must be finite")
    if not low < high:
        raise UsageError(f"--grid {name}={text}: the lower end must come first")
    log = ends[3] == ":log" or (ends[3] is None and low > 0 and high >= WIDE * low)
    if log and low <= 0:
        raise UsageError(f"--grid {name}={text}: a logarithmic range must be of numbers > 0")
    return Range(low, high, bool(re.fullmatch(r"[-+]?\d+", ends[1]) and re.fullmatch(r"[-+]?\d+", ends[2])), log)


def search(
    searched: Mapping[str, Range | list[str]],
    plan: Plan,
    out: Path,
    trials: int,
    seeds: int = 1,
    run: Callable[[Sequence[Point]], Mapping[Path, str]] | None = None,
) -> list[Trial]:
    """Try points that TPE proposes from the scores so far.

    Args:
        searched: what `space` gives.
        plan: the settings of a point.
        out: where the trials' runs go.
        trials: how many points are tried in all.
        seeds: runs for each point, with the seeds from `TUNING_SEED` on.
        run: runs points and returns the reasons of those that failed (default: `batch.carry_out`).

    Returns:
        The trials in the order in which they were proposed.
    """
    study, distributions = _study(searched)
    made: list[Trial] = []
    while len(made) < trials:
        asked = [study.ask(distributions) for _ in range(min(TOGETHER, trials - len(made)))]
        points = proposed(searched, [trial.params for trial in asked], plan, out, seeds)
        (run or (lambda some: batch.carry_out(some, out)))(points)
        done = batch.results(points)
        for trial, point in zip(asked, points, strict=True):
            made.append(Trial(point, _score(point, done)))
            _tell(study, trial, made[-1].score)
    return made


def proposed(
    searched: Mapping[str, Range | list[str]], params: Sequence[Mapping[str, Any]], plan: Plan, out: Path, seeds: int
) -> list[Point]:
    """Points with these parameters; numbers have four digits, which a reader can type."""
    values = [
        {name: f"{p[name]:.4g}" if isinstance(p[name], float) else str(p[name]) for name in searched} for p in params
    ]
    tuning = range(TUNING_SEED, TUNING_SEED + seeds)
    return sweep.points([(value, plan(value)) for value in values], tuning, out)


def first(searched: Mapping[str, Range | list[str]], plan: Plan, out: Path, seeds: int = 1) -> list[Point]:
    """The points that a search begins with; nothing is run."""
    study, distributions = _study(searched)
    return proposed(searched, [study.ask(distributions).params for _ in range(TOGETHER)], plan, out, seeds)


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the largest score, the first of equals."""
    known = [trial for trial in trials if trial.score is not None]
    if not known:
        raise UsageError("search: no trial came to its end; see their messages above")
    return max(known, key=lambda trial: trial.score or 0.0)


def _study(searched: Mapping[str, Range | list[str]]) -> tuple[Any, dict[str, Any]]:
    with extra("optuna", "search = optuna"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = optuna.distributions
    distributions: dict[str, Any] = {}
    for name, known in searched.items():
        if isinstance(known, list):
            distributions[name] = kinds.CategoricalDistribution(known)
        elif known.whole:
            distributions[name] = kinds.IntDistribution(int(known.low), int(known.high), log=known.log)
        else:
            distributions[name] = kinds.FloatDistribution(known.low, known.high, log=known.log)
    sampler = optuna.samplers.TPESampler(seed=SAMPLER_SEED)
    return optuna.create_study(direction="maximize", sampler=sampler), distributions


def _tell(study: Any, trial: Any, score: float | None) -> None:
    from optuna.trial import TrialState

    study.tell(trial, score, state=TrialState.FAIL if score is None else None)


def _score(point: Point, done: Mapping[Path, Result]) -> float | None:
    """AMP of the principal model, mean over the seeds, as something to be made large."""
    scores = []
    for job in point.jobs:
        if job.path not in done:
            return None
        result = done[job.path]
        scores.append(result.metric("amp").direction * float(result.last(result.principal)["amp"]))
    return None if any(score != score for score in scores) else fmean(scores)
