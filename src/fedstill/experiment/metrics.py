"""What is reported of a model in a round: accuracy and fairness over clients (FedKF, definitions 1–3) and more.

A metric is one entry of `metrics`: how it is made of the clients' values, and everything that shows it (tables,
terminal, plots, pages, loggers) needs to know. A metric of one's own is asked for by `metrics = ["name"]`:

    metrics.register("median")(Metric("median", "median", "accuracy of the median client", over=...))
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstill.core.registry import Registry
from fedstill.core.value import by_field
from fedstill.experiment.measures import Measure, measures, number

Accuracies = Sequence[float | None]
"""A measure on every client's local test; None for a client that has none."""


@dataclass(frozen=True)
class Shown:
    """How a number is shown, as a run keeps it: what reads a run needs nothing else."""

    key: str
    """The name in rows and JSON."""
    title: str
    about: str = ""
    unit: str = "%"
    factor: float = 100.0
    """What is shown is the value times this."""
    direction: int = 1
    """1 where more is better, -1 where less is."""
    digits: int = 2
    limits: tuple[float, float] | None = (0.0, 100.0)
    """The least and the most that can be, as shown; None where there is no most: then a chart starts at 0."""

    @property
    def arrow(self) -> str:
        """↑ where more is better, ↓ where less is."""
        return "↑" if self.direction > 0 else "↓"

    @property
    def heading(self) -> str:
        """Title, arrow and unit, for the head of a column."""
        return f"{self.title} {self.arrow} ({self.unit})"

    def text(self, value: float | None, spread: float = 0.0) -> str:
        """A value for the eye, with its spread where it has one.

        >>> METRICS[1].text(0.0066712, 0.001), METRICS[0].text(None)
        ('6.67 ± 1.00', '–')
        """
        if value is None or value != value:
            return "–"
        shown = f"{self.factor * value:.{self.digits}f}"
        return shown + (f" ± {self.factor * spread:.{self.digits}f}" if spread else "")

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return by_field(self, Shown)


@dataclass(frozen=True)
class Values:
    """A measure of one model, as a metric gets it."""

    each: Accuracies
    """On every client's local test; None for a client that has none."""
    samples: Sequence[int]
    """How many samples each of these tests has."""
    whole: float | None = None
    """On the global test; None where there is none."""
    direction: int = 1
    """1 where more of the measure is better, -1 where less is."""


@dataclass(frozen=True)
class Metric(Shown):
    """A metric of a model: a measure, and how its values on the clients become one number."""

    over: Callable[[Values], float | None] = lambda values: values.whole
    """Makes the number; None where there is none."""
    of: str | None = None
    """The measure it is made of; None: the run's own, accuracy unless `metric` says another."""
    follows: bool = False
    """Is more of it better where more of the measure is, and less where less is?"""

    def in_run(self, chosen: Measure) -> Shown:
        """How it is shown in a run whose measure is the `chosen` one."""
        known = by_field(self, Shown)
        known["about"] = self.about.format(measure=chosen.title)
        known["direction"] = self.direction * (chosen.direction if self.follows else 1)
        return Shown(**known)


def amp(accuracies: Accuracies, samples: Sequence[int]) -> float:
    """Average model performance: Σ n_k a_k / Σ n_k over the clients' test samples.

    >>> round(amp([0.6, 0.7, 0.8], [10, 10, 10]), 5)
    0.7
    """
    pairs = [(a, n) for a, n in zip(accuracies, samples, strict=True) if a is not None and n]
    return sum(a * n for a, n in pairs) / sum(n for _, n in pairs) if pairs else float("nan")


def fm(accuracies: Accuracies) -> float:
    """Fairness: the variance of the clients' accuracies around their plain mean; smaller is fairer.

    >>> round(fm([0.6, 0.7, 0.8]), 5), round(fm([0.65, 0.65, 0.8]), 5)
    (0.00667, 0.005)
    """
    known = [a for a in accuracies if a is not None]
    return float(np.var(known)) if known else float("nan")


def wlp(accuracies: Accuracies, direction: int = 1) -> float:
    """Worst local performance: the accuracy of the client served worst (the most, of what should be little).

    >>> wlp([0.6, 0.7, 0.8]), wlp([0.1, 0.3], direction=-1)
    (0.6, 0.3)
    """
    known = [a for a in accuracies if a is not None]
    return min(known, key=lambda a: direction * a, default=float("nan"))


metrics: Registry[Metric] = Registry("metric", instances_of=Metric)
for _metric in (
    Metric("amp", "AMP", "{measure} averaged over the clients' own tests", follows=True,
           over=lambda v: amp(v.each, v.samples)),
    Metric("fm", "FM", "its variance between clients, smaller is fairer", "10⁻³", 1000.0, -1, limits=None,
           over=lambda v: fm(v.each)),
    Metric("wlp", "WLP", "{measure} of the client served worst", follows=True,
           over=lambda v: wlp(v.each, v.direction)),
    Metric("accuracy", "global test", "accuracy on the data set's own test part", of="accuracy"),
):  # fmt: skip
    metrics.register(_metric.key)(_metric)

ATTACK_SUCCESS = Shown(
    "attack_success",
    "attack success",
    "samples with the backdoor's trigger that are taken for its target",
    direction=-1,
)
"""Reported of every model in a run under a backdoor attack."""

ALWAYS = ("amp", "fm", "wlp", "accuracy")
"""The metrics every run reports."""
METRICS: tuple[Shown, ...] = tuple(metrics[name].in_run(measures["accuracy"]) for name in ALWAYS)
"""How the metrics of a run are shown that says nothing else."""


@dataclass(frozen=True)
class Scorer:
    """What a run reports of a model: AMP, FM and WLP of its measure, the global test, and metrics it asks for."""

    measure: Measure
    reported: tuple[Metric, ...]
    beside: tuple[Shown, ...] = ()
    """How numbers are shown that somebody else finds: `attack_success`."""

    @classmethod
    def of(cls, measure: str = "accuracy", more: Iterable[str] = ()) -> "Scorer":
        """By the names of the measure and of the metrics reported besides."""
        chosen: Measure = measures[measure]
        reported = {name: metrics[name] for name in ALWAYS}
        if measure != "accuracy":
            about = f"{chosen.title} on the data set's own test part"
            reported[chosen.key] = Metric(
                chosen.key, f"global {chosen.title}", about, direction=chosen.direction, of=measure
            )
        reported |= {metrics[name].key: metrics[name] for name in more}
        return cls(chosen, tuple(reported.values()))

    @property
    def needed(self) -> dict[str, Measure]:
        """Every measure that has to be taken, by key."""
        named = [self.measure, *(measures[m.of] for m in self.reported if m.of)]
        return {m.key: m for m in named}

    @property
    def shown(self) -> list[Shown]:
        """How each of the metrics is shown."""
        return [*(metric.in_run(self.measure) for metric in self.reported), *self.beside]

    def scores(
        self, each: Sequence[Mapping[str, float | None]], samples: Sequence[int], whole: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """A model's metrics, and the measures of every client, from its measures on each local test and the global."""
        values = {
            key: Values([marks.get(key) for marks in each], samples, whole.get(key), measure.direction)
            for key, measure in self.needed.items()
        }
        scores: dict[str, Any] = {
            m.key: number(m.key, m.over, values[measures[m.of].key if m.of else self.measure.key])
            for m in self.reported
        }
        return {**scores, **{f"{key}_per_client": list(known.each) for key, known in values.items()}}


def rounds_to(curve: Sequence[float | None], target: float, direction: int = 1) -> int | None:
    """The first round (from 1) whose value reaches the target; None when none does.

    >>> rounds_to([0.2, 0.5, 0.9], 0.5), rounds_to([0.2], 0.5), rounds_to([0.3, 0.1], 0.2, direction=-1)
    (2, None, 2)
    """
    reached = (t for t, value in enumerate(curve, 1) if value is not None and direction * (value - target) >= 0)
    return next(reached, None)


def mixtures(accuracies: Accuracies, count: int, rng: np.random.Generator) -> list[float]:
    """Accuracy on random mixtures of the clients' distributions: each at least the worst client's (FedKF V-D)."""
    known = np.array([a for a in accuracies if a is not None])
    return [float(known @ rng.dirichlet(np.ones(len(known)))) for _ in range(count)]
