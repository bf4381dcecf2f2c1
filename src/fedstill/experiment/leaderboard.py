"""The leaderboard: every method, task by task, from records alone; ranks, and how far apart they must be to count.

Methods that give one model to everybody and methods that give each client its own stand in leagues of their own: on
clients whose classes differ, a personal model is examined on far fewer classes, and its AMP is another quantity. What
has all data in one place is shown beside them and not ranked: no federation competes with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.experiment.archive import Archive
from fedstill.experiment.config import experiment
from fedstill.experiment.metrics import ALWAYS
from fedstill.experiment.presets import Preset
from fedstill.experiment.records import Record
from fedstill.experiment.reproduce import RECORDED_SEEDS, Entry, named, plan
from fedstill.experiment.run import start
from fedstill.experiment.search import TUNING_SEED
from fedstill.experiment.table_metrics import described, which

SHARED, PERSONAL, YARDSTICK = LEAGUES = ("one model for all", "a model for each client", "all data in one place")
"""The leagues, as they are shown; the last one is not ranked."""
TIMES = (1, 3, 10, 30, 100)
"""What a documented rate is multiplied with in tuning: as many trials for every method."""
RANKED = ("amp", "fm", "wlp")
"""The metrics by which methods are ranked: by AMP on the board, by the others beside it."""
TUNING_ROUNDS = 10
"""A third of the board's: a rate that is too small or too large shows early."""


@dataclass(frozen=True)
class Score:
    """A method on a task: each metric's mean over the seeds, with bytes and processor time of a round."""

    metrics: Mapping[str, float]
    records: tuple[Record, ...]
    bytes: float
    seconds: float | None
    model: str = ""
    """The model whose metrics these are."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that the means are over."""
        return tuple(sorted(int(record.experiment["seed"]) for record in self.records))


@dataclass(frozen=True)
class Standing:
    """A method on the board."""

    method: str
    scores: Mapping[str, Score]
    """Task → score; a task that was not run is not there."""
    ranks: Mapping[str, float]
    """Task → place by AMP among those of its league, 1 the best, shared places averaged."""
    bytes: float | None
    """Bytes of a round, both ways, relative to FedAvg's: the geometric mean over tasks."""
    time: float | None
    """Processor time of a round relative to FedAvg's, likewise."""
    league: str = SHARED
    """The league it stands in."""
    among: int = 1
    """How many methods are ranked there."""
    mean_ranks: Mapping[str, float] = field(default_factory=dict)
    """Metric → mean rank by it over the same tasks, 1 the best: FM and WLP, the fairness beside AMP."""
    same_split: bool = True
    """Do its clients train and test on the samples they have with FedAvg, in every task?"""

    @property
    def model(self) -> str:
        """The model that it is judged by (`Method.judged_by`)."""
        return next((score.model for score in self.scores.values()), "")

    @property
    def public(self) -> Any:
        """The public set of its runs, as the setting has it; None: there is none."""
        return next((r.experiment.get("public") for score in self.scores.values() for r in score.records), None)

    @property
    def below(self) -> float | None:
        """The share of its league that stands above it: 0 for the best, 1 for the last. Unlike ranks, it can be
        compared between leagues of different sizes.

        >>> Standing("a", {}, {"task": 3.0}, None, None, among=9).below
        0.25
        """
        return None if self.rank is None else (self.rank - 1) / max(self.among - 1, 1)

    @property
    def rank(self) -> float | None:
        """The mean rank over the tasks."""
        return fmean(self.ranks.values()) if self.ranks else None

    @property
    def worst(self) -> float | None:
        """The worst rank over the tasks."""
        return max(self.ranks.values(), default=None)


@dataclass(frozen=True)
class League:
    """Methods whose models are of one kind, best mean rank first."""

    name: str
    standings: tuple[Standing, ...]
    tasks: tuple[str, ...]
    """The tasks by which they are ranked: those that all have run, but for methods with records of less than half."""
    critical: float | None
    """Mean ranks that differ by less than this do not differ (Nemenyi, 5 %)."""
    friedman: float | None
    """p-value of "all methods are alike" (Friedman)."""


def leagues(preset: Preset, archive: Archive, seeds: int = RECORDED_SEEDS) -> list[League]:
    """The board from the records: the leagues of shared and of personal models, and the yardstick beside them.

    A cell has those of the first `seeds` seeds that have a record: `Score.seeds` says which.
    """
    scores: dict[str, dict[str, Score]] = {}
    kinds: dict[str, str] = {}
    for entry in plan(preset, Path("."), seeds=seeds):
        score, kind = _score(entry, archive)
        scores.setdefault(entry.cell.row, {})
        if score is not None:
            scores[entry.cell.row][entry.cell.column] = score
            kinds[entry.cell.row] = kind
    usual = scores.get(fedavg_row(preset), {})
    tasks = [column["label"] for column in preset.content["columns"]]
    leagues = []
    for name in LEAGUES:
        inside = {method: scores[method] for method, kind in kinds.items() if kind == name}
        if inside:
            leagues.append(_league(name, inside, tasks, usual))
    return leagues


def fedavg_row(preset: Preset) -> str:
    """The label of FedAvg's row, the first where there are several: bytes, time and split are compared with it."""
    return next((label for label, method in _methods(preset).items() if method == "fedavg"), "")


def _methods(preset: Preset) -> dict[str, str]:
    """The rows' methods, by the rows' labels."""
    return {cell.row: str(cell.settings["method"]["name"]) for cell in preset.cells()}


def _score(entry: Entry, archive: Archive) -> tuple[Score | None, str]:
    """A cell's score over the seeds that have a record, and its league; nothing unless there is one."""
    pairs = [(job, archive.find(job.plan)) for job in entry.jobs]
    records = [(record, record.result(job.plan.rounds)) for job, record in pairs if record is not None]
    if not records:
        return None, ""
    model = which(records[0][1], entry.cell.model)[0]
    metrics = {}
    for metric in ALWAYS:
        known = [result.last(model).get(metric) for _, result in records]
        if all(value is not None for value in known):
            metrics[metric] = fmean(value for value in known if value is not None)
    traffic = fmean(sum(result.bytes().values()) / len(result.rows) for _, result in records)
    spent = [r.cpu_seconds / int(r.experiment["rounds"]) for r, _ in records if r.cpu_seconds]
    federated = entry.jobs[0].plan.method.federated
    kind = YARDSTICK if not federated else PERSONAL if model == "personal" else SHARED
    mean_spent = fmean(spent) if spent else None
    return Score(metrics, tuple(record for record, _ in records), traffic, mean_spent, model), kind


def _league(
    name: str, inside: Mapping[str, Mapping[str, Score]], tasks: Sequence[str], usual: Mapping[str, Score]
) -> League:
    most = max(len(scores) for scores in inside.values())
    known = {method: scores for method, scores in inside.items() if 2 * len(scores) >= most}  # a newcomer comes later
    common = tuple(task for task in tasks if all(task in scores for scores in known.values()))
    if name == YARDSTICK:
        known = {}
    by = {metric: {task: _placed(known, task, metric) for task in common} for metric in RANKED}
    ranked = by["amp"]
    standings = [
        Standing(
            method,
            scores,
            {task: ranked[task][method] for task in common if method in known},
            _relative(scores, usual, lambda score: score.bytes),
            _relative(scores, usual, lambda score: score.seconds),
            name,
            len(known),
            {m: fmean(by[m][task][method] for task in common) for m in RANKED[1:] if method in known and common},
            _same_split(scores, usual),
        )
        for method, scores in inside.items()
    ]
    standings.sort(key=lambda s: (s.rank is None, s.rank, s.method))
    critical, friedman = differences([[ranked[task][method] for task in common] for method in known])
    return League(name, tuple(standings), common, critical, friedman)


def _placed(known: Mapping[str, Mapping[str, Score]], task: str, metric: str) -> dict[str, float]:
    """Places of the methods on a task by a metric, 1 the best; who has no value shares the last ones."""
    sign = described(metric).direction
    values = {method: scores[task].metrics.get(metric) for method, scores in known.items()}
    return ranks({method: -math.inf if value is None else sign * value for method, value in values.items()})


def _same_split(scores: Mapping[str, Score], usual: Mapping[str, Score]) -> bool:
    """By the fingerprints of who trains, and is tested, on which samples."""
    both = [task for task in scores if task in usual]
    return all({r.split for r in scores[task].records} <= {r.split for r in usual[task].records} for task in both)


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """Places by value, 1 for the largest; who is level shares the mean of the places.

    >>> ranks({"a": 0.5, "b": 0.9, "c": 0.5})
    {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    ordered = sorted(values.values(), reverse=True)
    return {
        name: fmean(place for place, other in enumerate(ordered, 1) if other == value) for name, value in values.items()
    }


def differences(table: Sequence[Sequence[float]], level: float = 0.05) -> tuple[float | None, float | None]:
    """Nemenyi's critical difference of mean ranks and Friedman's p-value, for methods × tasks of ranks.

    CD = q √(k (k + 1) / (6 N)), q the studentised range over √2. By hand for k = 3 methods and N = 4 tasks: q = 2.343,
    CD = 2.343 √(12 / 24) = 1.657.

        >>> round(differences([[1, 1, 1, 2], [2, 2, 2, 1], [3, 3, 3, 3]])[0], 3)
        1.657
    """
    from scipy import stats

    k, n = len(table), len(table[0]) if table else 0
    if k < 2 or n < 1:
        return None, None
    q = float(stats.studentized_range.ppf(1 - level, k, math.inf)) / math.sqrt(2)
    p = float(stats.friedmanchisquare(*table).pvalue) if k > 2 and n > 1 else math.nan
    return q * math.sqrt(k * (k + 1) / (6 * n)), None if math.isnan(p) else p


def _relative(
    scores: Mapping[str, Score], usual: Mapping[str, Score], of: Callable[[Score], float | None]
) -> float | None:
    ratios = []
    for task, score in scores.items():
        mine, theirs = of(score), of(usual[task]) if task in usual else None
        if mine and theirs:
            ratios.append(math.log(mine / theirs))
    return math.exp(fmean(ratios)) if ratios else None


def at_the_edge(preset: Preset) -> tuple[int, int]:
    """How many tuned rates of the preset are the smallest or the largest that was tried, and how many there are."""
    chosen = preset.content.get("tuned", {})
    edges, names = 0, _methods(preset)
    for label, rate in chosen.items():
        documented: Any = experiment({"method": {"name": names.get(label, label)}}).method
        edges += any(math.isclose(rate, documented.lr * times) for times in (min(TIMES), max(TIMES)))
    return edges, len(chosen)


def tuned(
    preset: Preset, rows: Sequence[str] = (), tell: Callable[[str], None] = lambda text: None
) -> dict[str, float]:
    """The rate of every method that has the best AMP on the first task after `TUNING_ROUNDS`, seed `TUNING_SEED`.

    Each method has as many trials: `TIMES` its documented rate. `rows` chooses by label (with * and ?); `tell` gets a
    line for each.
    """
    first = preset.content["columns"][0]["label"]
    inside = [cell for cell in preset.cells() if cell.column == first]
    chosen = [cell for cell in inside if named(cell.row, rows)]
    if not chosen:
        raise UsageError(
            f"row = {', '.join(rows)}: {preset.name} has no such row on {first}; "
            f"there are {', '.join(cell.row for cell in inside)}"
        )
    rates = {}
    for cell in chosen:
        documented: Any = experiment({"method": {"name": cell.settings["method"]["name"]}}).method
        trials: dict[float, float] = {}
        for times in TIMES:
            rate = float(f"{documented.lr * times:.6g}")
            method = {**cell.settings["method"], "lr": rate}
            count = min(TUNING_ROUNDS, int(cell.settings["rounds"]))  # a method for one round has one
            short = {"rounds": count, "evaluate_every": count, "workers": "inline"}
            settings = {**cell.settings, **short, "method": method, "seed": TUNING_SEED}
            result = start(experiment(settings), out=None)
            amp = result.last(which(result, cell.model)[0])["amp"]
            trials[rate] = described("amp").direction * amp if amp == amp else -math.inf
        rates[cell.row] = max(trials, key=lambda rate: trials[rate])
        tell(f"{cell.row}: " + ", ".join(f"{rate:g} → {amp:.4f}" for rate, amp in trials.items()))
    return rates
