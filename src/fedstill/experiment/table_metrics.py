"""A cell's number: a metric, by the name that presets give it, read from a run.

Every metric that runs report (`fedstill ls metrics`, a user's own among them) can stand in a table. So can what is
made of a whole run, or of a run and FedAvg's in the same column: each is one entry of `table_metrics`. A name that
ends in a colon is followed by a goal: `rounds_to:0.85`, `rounds_to:fedavg`, `seconds:identify`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from fedstill.core.errors import UsageError, unknown
from fedstill.core.registry import Registry
from fedstill.core.value import by_field
from fedstill.experiment.measures import measures
from fedstill.experiment.metrics import ALWAYS, ATTACK_SUCCESS, Shown, metrics
from fedstill.experiment.passes import METRICS as PASSES
from fedstill.experiment.result import Result


@dataclass(frozen=True)
class Beyond:
    """A target that was not reached: all that is known is a bound that its number lies beyond."""

    bound: float
    """What the whole run took, in the metric's own unit; of a speed-up, the one it would be with that."""
    rounds: int
    """So many rounds the run had."""


@dataclass(frozen=True)
class Untimed:
    """A time of a recorded run that is not its own: measured by the clock on the wall, maybe beside other runs."""


Reading = float | Beyond | Untimed | None


@dataclass(frozen=True)
class Case:
    """What a number is read from: a run, the model that the row asks for, and FedAvg's run and model beside it."""

    result: Result
    asked: str
    fedavg: tuple[Result, str] | None = None

    @property
    def model(self) -> str:
        """The run's model that the row means."""
        return which(self.result, self.asked)[0]

    @property
    def accuracy(self) -> str:
        """The key of that model's accuracy on the global test."""
        return which(self.result, self.asked)[1]

    @property
    def seconds(self) -> float | Untimed:
        """Of all rounds: by the wall without evaluation, of a recorded run the processor's."""
        return _training(self.result)


@dataclass(frozen=True)
class TableMetric(Shown):
    """A metric of a whole run: how it is shown (a title may name its `{goal}`), and how it is read, given the goal."""

    read: Callable[[Case, str], Reading] = lambda case, goal: None
    counted: bool = False
    """Whether the settings decide it, as they do bytes: then all seeds agree because there is nothing to vary."""


table_metrics: Registry[TableMetric] = Registry("table metric", instances_of=TableMetric)


def _found(name: str) -> tuple[TableMetric, str]:
    """The entry that a preset's name means, and the goal behind its colon."""
    head, colon, goal = name.partition(":")
    key = f"{head}:" if colon and goal else name
    if key in table_metrics:
        return table_metrics[key], goal
    if name not in metrics:
        raise unknown("metric", name, [*metrics, *(f"{key}…" if key.endswith(":") else key for key in table_metrics)])
    reported = metrics[name].in_run(measures["accuracy"])
    return TableMetric(**by_field(reported), read=partial(_last, key=reported.key)), ""


def check(name: str) -> None:
    """Refuse a metric nobody can read."""
    _found(name)


def to_report(names: Sequence[str]) -> tuple[str, ...]:
    """Those of a cell's metrics that a run reports only where it is asked to: metrics of one's own."""
    return tuple(name for name in names if name not in ALWAYS and _found(name)[0].key not in table_metrics)


def described(name: str) -> TableMetric:
    """How a cell's number is shown, by the name presets give its metric.

    >>> described("fm").heading, described("rounds_to:0.85").title, described("seconds:total").unit
    ('FM ↓ (10⁻³)', 'rounds to 85 %', 's')
    """
    entry, goal = _found(name)
    return replace(entry, key=name, title=entry.title.format(goal=_goal(goal))) if goal else entry


def _goal(goal: str) -> str:
    """What follows a colon, for the eye."""
    known = {"fedavg": "FedAvg's last AMP", "identified": "all identified"}
    try:
        return known.get(goal) or f"{100 * float(goal):g} %"
    except ValueError:
        return goal.replace("_", " ")


def reading(name: str, result: Result, model: str, fedavg: tuple[Result, str] | None = None) -> Reading:
    """The number; None where the run has none. `fedavg` is the run (and its model) that targets are taken from."""
    entry, goal = _found(name)
    return entry.read(Case(result, model, fedavg), goal)


def which(result: Result, model: str) -> tuple[str, str]:
    """The run's model that a row means, and the key of its accuracy.

    `global` is the one that the method says it is judged by; of a method that says nothing the shared model, FedAvg's
    being called `active`, or the clients' own where nothing is shared. `median` is the median client's own.
    """
    there = result.models
    if model == "median":
        return "personal", "accuracy_median"
    if model in there:
        return model, "accuracy"
    if model == "global" and result.own in there:
        return result.own, "accuracy"
    shared = [name for name in there if name != "personal"]
    if model in ("global", "active") and shared:
        return ("active" if "active" in there else shared[0]), "accuracy"
    if model in ("global", "active", "personal") and there:
        return there[0], "accuracy"
    raise UsageError(f"model = {model!r}: this run has {', '.join(there) or 'none'}")


def _last(case: Case, goal: str, key: str) -> Reading:
    return _number(case.result.last(case.model).get(case.accuracy if key == "accuracy" else key))


def _personal(case: Case, goal: str, key: str) -> Reading:
    return _number(case.result.last("personal").get(key)) if "personal" in case.result.models else None


def _shut_out(case: Case, goal: str, key: str) -> Reading:
    judged = [row["identification"][key] for row in case.result.rows if "identification" in row]
    return fmean(judged) if judged else None


def _fact(case: Case, goal: str, key: str) -> Reading:
    facts = [row["facts"][key] for row in case.result.rows if key in row.get("facts", {})]
    return fmean(facts[-1]) if facts and isinstance(facts[-1], list) and facts[-1] else _number((facts or [None])[-1])


def _rounds_to(case: Case, goal: str) -> Reading:
    if goal == "identified":
        return _identified(case.result)
    if goal == "fedavg":
        return _rounds_to_fedavg(case)
    return _or_beyond(case.result, case.result.rounds_to(case.model, case.accuracy, float(goal)))


def _time_to(case: Case, goal: str) -> Reading:
    whole = case.result.time
    time = case.result.time_to(case.model, case.accuracy, float(goal))
    return Beyond(whole, len(case.result.rows)) if time is None and whole is not None else time


def _bytes_to(case: Case, goal: str) -> Reading:
    reached = _rounds_to(case, goal) if goal else float(len(case.result.rows))
    if isinstance(reached, Beyond):
        return replace(reached, bound=_sent(case.result, reached.rounds))
    return _sent(case.result, int(reached)) if isinstance(reached, float) else None


def _seconds_to(case: Case, goal: str) -> Reading:
    rounds, seconds = _rounds_to(case, goal), case.seconds
    if rounds is None or isinstance(rounds, Untimed) or isinstance(seconds, Untimed):
        return None if rounds is None else Untimed()
    if isinstance(rounds, Beyond):
        return replace(rounds, bound=seconds)
    return seconds / len(case.result.rows) * rounds


def _speedup(case: Case, goal: str) -> Reading:
    return _ratio(len(case.fedavg[0].rows) if case.fedavg else None, _rounds_to_fedavg(case))


def _slowdown(case: Case, goal: str) -> Reading:
    return _ratio(case.seconds, _training(case.fedavg[0]) if case.fedavg else None)


def _time_speedup(case: Case, goal: str) -> Reading:
    return _ratio(_training(case.fedavg[0]) if case.fedavg else None, _seconds_to(case, "fedavg"))


def fluctuation(curve: Sequence[float | None]) -> float | None:
    """The mean change, up or down, from one value to the next in the second half of a curve.

    >>> round(fluctuation([0.1, 0.9, 0.5, 0.6, 0.4]), 9)   # of 0.5, 0.6, 0.4
    0.15
    """
    half = [value for value in curve[len(curve) // 2 :] if value is not None]
    steps = [abs(after - before) for before, after in pairwise(half)]
    return fmean(steps) if steps else None


def _fluctuation(case: Case, goal: str, of: str) -> Reading:
    return fluctuation(case.result.curve(case.model, of))


def _sent(result: Result, rounds: int) -> float:
    """Bytes down and up of all clients, to this round."""
    return float(sum(sum(way.values()) for row in result.rows[:rounds] for way in row["bytes"].values()))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None


def _training(result: Result) -> float | Untimed:
    """Seconds of all rounds: without evaluation by the wall; of a recorded run the processor's, all in all."""
    if result.recorded:
        return Untimed() if result.cpu_seconds is None else result.cpu_seconds
    return float(sum(spent for row in result.rows for phase, spent in row["seconds"].items() if phase != "evaluate"))


def _or_beyond(result: Result, rounds: int | None) -> Reading:
    return Beyond(float(len(result.rows)), len(result.rows)) if rounds is None else float(rounds)


def _rounds_to_fedavg(case: Case) -> Reading:
    if case.fedavg is None:
        return None
    yardstick, its = case.fedavg[0], which(*case.fedavg)[0]
    if case.result is yardstick and case.model == its:
        return float(len(case.result.rows))  # by definition: the target is where it ends
    return _or_beyond(case.result, case.result.rounds_to(case.model, "amp", yardstick.last(its)["amp"]))


def _ratio(over: float | Untimed | None, under: Reading) -> Reading:
    """Over by under; of a target that was not reached it is less than this, which is a bound too."""
    if isinstance(over, Untimed) or isinstance(under, Untimed):
        return Untimed()
    if isinstance(under, Beyond):
        bound = _ratio(over, under.bound)
        return replace(under, bound=bound) if isinstance(bound, float) else None
    return over / under if over is not None and under else None


def _identified(result: Result) -> Reading:
    rows = [row for row in result.rows if "identification" in row]
    right = [row["identification"]["precision"] == row["identification"]["recall"] == 1 for row in rows]
    if not rows:
        return None
    first = next((t for t in range(len(rows)) if all(right[t:])), None)
    return _or_beyond(result, None if first is None else int(rows[first]["round"]))


def _module(case: Case, goal: str) -> Reading:
    rounds: list[Mapping[str, float]] = [
        row["facts"]["module_seconds"] for row in case.result.rows if row.get("facts", {}).get("module_seconds")
    ]
    if rounds and case.result.recorded:
        return Untimed()  # the processor's time is known of whole runs alone
    rounds = [{key.removesuffix("_server"): value for key, value in spent.items()} for spent in rounds]
    if goal.startswith("total"):
        skip = "train" if goal == "total_without_training" else ""
        return fmean(sum(v for k, v in spent.items() if k != skip) for spent in rounds) if rounds else None
    known = [spent[goal] for spent in rounds if goal in spent]
    return fmean(known) if known else None


def _less(
    key: str, title: str, about: str, unit: str, factor: float, digits: int, read: Any, counted: bool = False
) -> TableMetric:
    """Of what should be little, and has no most."""
    return TableMetric(key, title, about, unit, factor, -1, digits, None, read, counted)


for _entry in (
    TableMetric(**by_field(ATTACK_SUCCESS), read=partial(_last, key="attack_success")),
    TableMetric("personal", "client accuracy", "mean of the clients' own models on the global test (FedTKD 26)",
                read=partial(_personal, key="accuracy")),
    TableMetric("honest", "honest clients' accuracy", "mean of honest clients' own models on the global test",
                read=partial(_personal, key="accuracy_honest")),
    *(TableMetric(key, key, "of shutting out malicious clients, the mean over the rounds in which one answered",
                  read=partial(_shut_out, key=key)) for key in ("precision", "recall")),
    TableMetric("global_logits", "global logits", "accuracy of the fused logits on the public set (FedTKD 27)",
                read=partial(_fact, key="global_logits")),
    TableMetric("client_logits", "client logits", "mean accuracy of the clients' logits on the public set (FedTKD 28)",
                read=partial(_fact, key="client_logits")),
    _less("rounds_to:", "rounds to {goal}", "first round with that accuracy on the global test (0.85); with the AMP "
          "that FedAvg of the same column and seed has after its last round, T (fedavg; its own is T by definition); "
          "from which on exactly the malicious clients are shut out (identified)", "rounds", 1, 1, _rounds_to),
    _less("time_to:", "virtual time to {goal}", "virtual time until that accuracy, where the run has a clock (`pace`)",
          "turns", 1, 1, _time_to),
    _less("bytes", "sent", "bytes both ways, of all clients, in all rounds", "MB", 1e-6, 2, _bytes_to, counted=True),
    _less("bytes_to:", "sent to reach {goal}", "bytes both ways, of all clients, until `rounds_to:` the same goal",
          "MB", 1e-6, 1, _bytes_to),
    *(_less(key, f"fluctuation of {of.upper()}", f"mean change of {of.upper()} from one examined round to the next, "
            "second half (FedKF, robustness and figure 5)", metrics[of].unit, metrics[of].factor, 2,
            partial(_fluctuation, of=of))
      for key, of in (("fluctuation", "amp"), ("fluctuation_fm", "fm"), ("fluctuation_wlp", "wlp"))),
    TableMetric("speedup", "speed-up", "T over `rounds_to:fedavg` (FedKF VIII)", "×", 1, limits=None, read=_speedup),
    _less("seconds", "all rounds", "of all rounds without evaluation, one cell at a time; of recorded runs the "
          "processor's, all in all", "s", 1, 2, lambda case, goal: case.seconds),
    _less("seconds:", "{goal}", "mean seconds a round of a module on the server: identify, fuse, weigh, train (FedTKD "
          "6); total, total_without_training", "s", 1, 2, _module),
    _less("slowdown", "times FedAvg's", "`seconds` over FedAvg's (FedKF X)", "×", 1, 2, _slowdown),
    _less("seconds_to:", "to {goal}", "mean seconds a round times `rounds_to:` the same goal", "s", 1, 2, _seconds_to),
    TableMetric("time_speedup", "speed-up", "FedAvg's `seconds` over `seconds_to:fedavg` (FedKF XI)", "×", 1,
                limits=None, read=_time_speedup),
    *(_less(key, key.replace("_", " "), "passes for each batch, counted while batches run: half of the first layer's "
            "and half of the head's (FedKF IX)", "a batch", 1, 2, lambda case, goal: None, counted=True)
      for key in PASSES),
):  # fmt: skip
    table_metrics.register(_entry.key)(_entry)
