"""A cell's number: a metric, by the name the presets give it, read from a result.

amp, fm, wlp, accuracy      of the row's model, in the last evaluated round
personal, honest            mean accuracy of the clients' own models on the global test (FedTKD 26); of honest clients
precision, recall           of shutting out malicious clients, the mean over the rounds in which one answered
global_logits, client_logits  accuracy of the fused logits (27), mean of the clients' logits (28), on the public set
rounds_to:0.85              first round with that accuracy on the global test
time_to:0.85                virtual time until then, where the run has a clock (`pace`)
rounds_to:fedavg, speedup   first round with the AMP that FedAvg has after its last one, T; T over that (FedKF VIII)
fluctuation                 mean change of AMP from one examined round to the next, second half (FedKF, robustness)
bytes                       bytes both ways, of all clients, in all rounds
bytes_to:0.85, bytes_to:fedavg  bytes both ways, of all clients, until that accuracy, or FedAvg's last AMP, is reached
rounds_to:identified        first round from which on exactly the malicious are shut out
seconds, slowdown           of all rounds without evaluation; over FedAvg's (FedKF X)
seconds_to:fedavg, time_speedup  seconds a round times rounds_to:fedavg; FedAvg's over that (FedKF XI)
seconds:identify …          mean seconds a round of a module on the server (FedTKD 6); total, total_without_training
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.experiment.metrics import ATTACK_SUCCESS, METRICS, Shown
from fedstill.experiment.passes import METRICS as PASSES
from fedstill.experiment.result import Result

REPORTED = {metric.key: metric for metric in (*METRICS, ATTACK_SUCCESS)}
PLAIN = (
    *REPORTED, "fluctuation", "personal", "honest", "precision", "recall", "client_logits", "global_logits", "bytes",
    "seconds", "slowdown", "speedup", "time_speedup",
)  # fmt: skip
RATIOS = {"speedup": ("speed-up", 1), "slowdown": ("times FedAvg's", -1), "time_speedup": ("speed-up", 1)}
"""Ratios to FedAvg: their title, and whether more (1) or less (-1) is better."""
PREFIXES = ("rounds_to", "time_to", "bytes_to", "seconds_to", "seconds")


@dataclass(frozen=True)
class Beyond:
    """A target that was not reached in so many rounds."""

    rounds: int


Reading = float | Beyond | None


def check(metric: str) -> None:
    """Refuse a metric nobody can read."""
    head, colon, tail = metric.partition(":")
    if metric in PLAIN or (colon and head in PREFIXES and tail):
        return
    raise UsageError(f"unknown metric {metric!r}; known: {', '.join(PLAIN)}, {', '.join(p + ':…' for p in PREFIXES)}")


def described(metric: str) -> Shown:
    """How a cell's number is shown, by the name presets give its metric.

    >>> described("fm").heading, described("rounds_to:0.85").title, described("seconds:total").unit
    ('FM ↓ (10⁻³)', 'rounds to 85 %', 's')
    """
    if metric in REPORTED:
        return REPORTED[metric]
    head, _, tail = metric.partition(":")
    if head in ("rounds_to", "bytes_to", "time_to"):
        goals = {"fedavg": "FedAvg's last AMP", "identified": "all identified"}
        goal = goals.get(tail) or f"{100 * float(tail):g} %"
        if head == "bytes_to":
            return Shown(metric, f"sent to reach {goal}", unit="MB", factor=1e-6, direction=-1, digits=1, limits=None)
        if head == "time_to":
            return Shown(metric, f"virtual time to {goal}", unit="turns", factor=1, direction=-1, digits=1, limits=None)
        return Shown(metric, f"rounds to {goal}", unit="rounds", factor=1, direction=-1, digits=1, limits=None)
    if metric == "bytes":
        return Shown(metric, "sent", unit="MB", factor=1e-6, direction=-1, limits=None)
    if metric == "fluctuation":
        return Shown(metric, "fluctuation of AMP", direction=-1, limits=None)
    if head in ("seconds", "seconds_to"):
        title = "to FedAvg's last AMP" if head == "seconds_to" else tail.replace("_", " ") or "all rounds"
        return Shown(metric, title, unit="s", factor=1, direction=-1, limits=None)
    if metric in RATIOS:
        title, direction = RATIOS[metric]
        return Shown(metric, title, unit="×", factor=1, direction=direction, limits=None)
    if metric in PASSES:
        return Shown(metric, metric.replace("_", " "), unit="a batch", factor=1, direction=-1, limits=None)
    titles = {"personal": "client accuracy", "honest": "honest clients' accuracy"}
    return Shown(metric, titles.get(metric, metric.replace("_", " ")))


def which(result: Result, model: str) -> tuple[str, str]:
    """The run's model that a row means, and the key of its accuracy.

    `global` is the only global model there is, FedAvg's being called `active`; `median` the median client's own.
    """
    there = result.models
    if model == "median":
        return "personal", "accuracy_median"
    if model in there:
        return model, "accuracy"
    shared = [name for name in there if name != "personal"]
    if model in ("global", "active") and shared:
        return ("active" if "active" in there else shared[0]), "accuracy"
    if model in ("global", "active", "personal") and there:
        return there[0], "accuracy"
    raise UsageError(f"model = {model!r}: this run has {', '.join(there) or 'none'}")


def reading(metric: str, result: Result, model: str, fedavg: tuple[Result, str] | None = None) -> Reading:
    """The number; None where the run has none. `fedavg` is the run (and its model) that targets are taken from."""
    check(metric)
    head, _, tail = metric.partition(":")
    if metric in REPORTED:
        name, accuracy = which(result, model)
        return _number(result.last(name).get(accuracy if metric == "accuracy" else metric))
    if metric in ("personal", "honest"):
        key = "accuracy" if metric == "personal" else "accuracy_honest"
        return _number(result.last("personal").get(key)) if "personal" in result.models else None
    if metric in ("precision", "recall"):
        judged = [row["identification"][metric] for row in result.rows if "identification" in row]
        return fmean(judged) if judged else None
    if metric in ("client_logits", "global_logits"):
        value = next((r["facts"][metric] for r in reversed(result.rows) if metric in r.get("facts", {})), None)
        return fmean(value) if isinstance(value, list) and value else _number(value)
    if metric == "rounds_to:identified":
        return _identified(result)
    if metric == "rounds_to:fedavg":
        return _rounds_to_fedavg(result, model, fedavg)
    if head == "rounds_to":
        name, accuracy = which(result, model)
        return _or_beyond(result, result.rounds_to(name, accuracy, float(tail)))
    if head == "time_to":
        name, accuracy = which(result, model)
        time = result.time_to(name, accuracy, float(tail))
        return Beyond(len(result.rows)) if time is None and result.time is not None else time
    if metric == "bytes":
        return _sent(result, len(result.rows))
    if metric == "fluctuation":
        return fluctuation(result.curve(which(result, model)[0], "amp"))
    if head == "bytes_to":
        reached = reading(f"rounds_to:{tail}", result, model, fedavg)
        return _sent(result, int(reached)) if isinstance(reached, float) else reached
    if metric == "speedup":
        return _ratio(len(fedavg[0].rows) if fedavg else None, _rounds_to_fedavg(result, model, fedavg))
    if head == "seconds" and tail:
        return _module(result, tail)
    return _times(metric, result, model, fedavg)


def fluctuation(curve: Sequence[float | None]) -> float | None:
    """The mean change, up or down, from one value to the next in the second half of a curve.

    >>> round(fluctuation([0.1, 0.9, 0.5, 0.6, 0.4]), 9)   # of 0.5, 0.6, 0.4
    0.15
    """
    half = [value for value in curve[len(curve) // 2 :] if value is not None]
    steps = [abs(after - before) for before, after in pairwise(half)]
    return fmean(steps) if steps else None


def _sent(result: Result, rounds: int) -> float:
    """Bytes down and up of all clients, to this round."""
    return float(sum(sum(way.values()) for row in result.rows[:rounds] for way in row["bytes"].values()))


def _times(metric: str, result: Result, model: str, fedavg: tuple[Result, str] | None) -> Reading:
    spent = _training(result)
    if metric == "seconds":
        return spent
    usual = _training(fedavg[0]) if fedavg else None
    if metric == "slowdown":
        return spent / usual if usual else None
    rounds = _rounds_to_fedavg(result, model, fedavg)
    if not isinstance(rounds, float):
        return rounds
    needed = spent / len(result.rows) * rounds
    return needed if metric == "seconds_to:fedavg" else _ratio(usual, needed)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None


def _training(result: Result) -> float:
    return float(sum(spent for row in result.rows for phase, spent in row["seconds"].items() if phase != "evaluate"))


def _or_beyond(result: Result, rounds: int | None) -> Reading:
    return Beyond(len(result.rows)) if rounds is None else float(rounds)


def _rounds_to_fedavg(result: Result, model: str, fedavg: tuple[Result, str] | None) -> Reading:
    if fedavg is None:
        return None
    yardstick, its_model = fedavg
    name, its = which(result, model)[0], which(yardstick, its_model)[0]
    if result is yardstick and name == its:
        return float(len(result.rows))  # by definition: the target is where it ends
    return _or_beyond(result, result.rounds_to(name, "amp", yardstick.last(its)["amp"]))


def _ratio(over: float | None, under: Reading) -> Reading:
    return over / under if over is not None and isinstance(under, float) and under else None


def _identified(result: Result) -> Reading:
    rows = [row for row in result.rows if "identification" in row]
    right = [row["identification"]["precision"] == row["identification"]["recall"] == 1 for row in rows]
    if not rows:
        return None
    first = next((t for t in range(len(rows)) if all(right[t:])), None)
    return Beyond(len(result.rows)) if first is None else float(rows[first]["round"])


def _module(result: Result, name: str) -> float | None:
    rounds: list[Mapping[str, float]] = [
        row["facts"]["module_seconds"] for row in result.rows if row.get("facts", {}).get("module_seconds")
    ]
    rounds = [{key.removesuffix("_server"): value for key, value in spent.items()} for spent in rounds]
    if name.startswith("total"):
        skip = "train" if name == "total_without_training" else ""
        return fmean(sum(v for k, v in spent.items() if k != skip) for spent in rounds) if rounds else None
    known = [spent[name] for spent in rounds if name in spent]
    return fmean(known) if known else None
