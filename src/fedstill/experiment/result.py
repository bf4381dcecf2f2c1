"""What a run gives back."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstill.core.errors import UsageError, unknown
from fedstill.core.method import methods
from fedstill.core.registry import Registry
from fedstill.core.rng import numpy_stream
from fedstill.experiment.health import Health
from fedstill.experiment.metrics import Scorer, Shown, mixtures, rounds_to
from fedstill.experiment.rundir import RunDir

views: Registry[Callable[..., Any]] = Registry("view of a result")
"""How people look at results: whoever shows them registers here, so that running knows nothing of showing."""


def judged_by(method: str) -> str:
    """The model that a method, by its name, says it is judged by (`Method.judged_by`); empty where it says nothing.

    No code of others is imported for it: `package.module:Name` is asked only where the module is there already.

    >>> judged_by("ccvr"), judged_by("fedavg"), judged_by("nobody.knows:Me")
    ('calibrated', '', '')
    """
    known = method in set(methods) or method.partition(":")[0] in sys.modules
    return str(methods[method].judged_by) if known else ""


def principal(models: Iterable[str], own: str = "") -> str:
    """The model of a run that is used when nobody says which, out of `models`.

    `own`, the one its method is judged by, where it names one; else `overall`, the steadier, where there is one; else
    the first. A table's row takes `table_metrics.which` instead, which differs in one thing: it never takes `overall`
    from a method that does not name it, since any method that averages has one here, and its paper has not.

    >>> principal(["active", "overall", "calibrated"], "calibrated"), principal(["active", "overall"])
    ('calibrated', 'overall')
    """
    names = list(models)
    return next((name for name in (own, "overall", *names) if name in names), "")


@dataclass(frozen=True, repr=False)
class Result:
    """A run's experiment and its metrics, round by round."""

    experiment: Mapping[str, Any]
    """Every setting of the run, as it was written down."""
    rows: Sequence[Mapping[str, Any]]
    """The line of each round in `metrics.jsonl`: scores of every model, bytes, seconds, and what the method adds."""
    run_dir: Path | None = None
    """The run's folder; None where nothing was written."""
    seconds: float = 0.0
    """How long the rounds took together."""
    stopped: str = ""
    """Why the run ended before its last round; empty where it did not."""
    recorded: bool = False
    """Read from a record: other runs may have gone on beside it, so its wall times are not its own."""
    cpu_seconds: float | None = None
    """Of a recorded run, the processor time that these rounds took; None where it was not measured."""

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], run_dir: Path | None, stopped: str = ""
    ) -> "Result":
        """The result of a run with these settings and these lines of metrics."""
        return cls(settings, rows, run_dir, sum(sum(row["seconds"].values()) for row in rows), stopped)

    @classmethod
    def read(cls, path: str | Path) -> "Result":
        """The result of a run so far, from its folder `path`."""
        run = RunDir.open(Path(path))
        rows, end = run.rows(), run.read("result.json") or {}
        stopped = end.get("stopped", "") if end.get("rounds") == len(rows) else ""
        return cls.of(run.read("experiment.json"), rows, run.path, stopped)

    def __repr__(self) -> str:
        """The run in one line: what ran, how far it came, and how well its models do."""
        scores = ", ".join(f"{name} AMP {self.last(name)['amp']:.4f}" for name in self.models)
        place = f", {self.run_dir}" if self.run_dir else ""
        head = f"{self.experiment['method']['name']} on {self.experiment['data']}, seed {self.experiment['seed']}"
        return f"Result({head}, {len(self.rows)} rounds{f': {scores}' if scores else ''}{place})"

    def model(self, name: str | None = None, model: Any = None) -> Any:
        """A model of the run as a ready `torch.nn.Module` in eval mode, which takes raw inputs and gives logits.

        `name`: `overall`, `active` … or a client's number (default: the one the method is
        judged by where it names one, else `overall` where there is one, else the first).
        `model`: the module, class or factory again, for a run whose model was given as an object.
        """
        if self.run_dir is None:
            raise UsageError("the run was not written (out=None): its models are gone")
        return views["model"](self.run_dir, name, model=model)

    def predict(self, x: Any, name: str | None = None, model: Any = None) -> Any:
        """The class numbers of raw inputs `x` (array, tensor or list; one sample or many), as a numpy array.

        `name` and `model`: as of `model`.
        """
        return self.model(name, model).predict(x)

    def file(self, name: str) -> Any:
        """The JSON file `name` of the run's folder (`partition.json`); None without such a file or without a folder."""
        return None if self.run_dir is None else RunDir(self.run_dir).read(name)

    @property
    def place(self) -> str:
        """What to call the run where people read it: its folder, or `run` where it was not written."""
        return "run" if self.run_dir is None else str(self.run_dir)

    @property
    def health(self) -> Health:
        """Whose replies were not used and why, round by round (`rounds`) and in sum (`total`)."""
        return Health.of(self.rows)

    @cached_property
    def metrics(self) -> Sequence[Shown]:
        """The metrics the run reports, and how they are shown: as the run wrote them down."""
        written = self.file("metrics.json")
        if written is not None:
            return [Shown(**entry) for entry in written]
        return Scorer.of(self.experiment.get("metric", "accuracy"), self.experiment.get("metrics", ())).shown

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients where they have some, as the sites of a table do; empty where they are numbers."""
        return tuple((self.file("partition.json") or {}).get("client_names", ()))

    def metric(self, key: str) -> Shown:
        """One of the run's metrics, by its key."""
        known = {metric.key: metric for metric in self.metrics}
        if key not in known:
            raise unknown("metric of this run", key, known)
        return known[key]

    @property
    def models(self) -> list[str]:
        """The models the run reports."""
        return list(self._evaluated[-1]["models"]) if self._evaluated else []

    @property
    def own(self) -> str:
        """The model that the run's method says it is judged by; empty where it says nothing."""
        return judged_by(str(self.experiment["method"]["name"]))

    @property
    def principal(self) -> str:
        """The model that is used when nobody says which; empty before the first evaluated round."""
        return principal(self.models, self.own)

    @property
    def _evaluated(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row.get("models")]

    def curve(self, model: str, metric: str) -> list[float | None]:
        """One value for each evaluated round: `metric` (`amp`, `fm` …, see `metrics`) of `model` (see `models`)."""
        return [row["models"].get(model, {}).get(metric) for row in self._evaluated]

    def last(self, model: str) -> Mapping[str, Any]:
        """A model's metrics in the last evaluated round."""
        return self._evaluated[-1]["models"][model]  # type: ignore[no-any-return]

    def best(self, model: str) -> Mapping[str, Any]:
        """A model's metrics in the round with its best AMP, with that round; where it has none, in its first."""
        sign = self.metric("amp").direction

        def goodness(row: Mapping[str, Any]) -> float:
            amp = row["models"][model].get("amp")
            return float("-inf") if amp is None or amp != amp else sign * float(amp)

        row = max((row for row in self._evaluated if model in row["models"]), key=goodness)
        return {"round": row["round"], **{m.key: row["models"][model].get(m.key) for m in self.metrics}}

    def per_client(self, model: str) -> Sequence[float | None]:
        """The run's measure (accuracy by default) of `model` on each client's own test, in the last evaluated round."""
        measured = (values for key, values in self.last(model).items() if key.endswith("_per_client"))
        return next(measured, ())

    def worst(self, model: str) -> tuple[int, float] | None:
        """The client that `model` serves worst, and its value of `per_client`; None where no client has a test."""
        sign = self.metric("amp").direction
        known = [(sign * value, client) for client, value in enumerate(self.per_client(model)) if value is not None]
        return (min(known)[1], sign * min(known)[0]) if known else None

    def mixtures(self, model: str, count: int = 100) -> dict[str, float] | None:
        """Accuracy of `model` on `count` random mixtures of the clients' distributions (FedKF V-D).

        Returns:
            `count`, and the `worst` and the `mean` accuracy in the last evaluated round; None without tests.
        """
        each = self.last(model)["accuracy_per_client"]
        if all(accuracy is None for accuracy in each):
            return None
        accuracies = mixtures(each, count, numpy_stream(int(self.experiment["seed"]), "mixtures"))
        return {"count": count, "worst": min(accuracies), "mean": fmean(accuracies)}

    def rounds_to(self, model: str, metric: str, target: float) -> int | None:
        """The first round in which `metric` of `model` is at least as good as `target`; None if it never is."""
        known = {shown.key: shown.direction for shown in self.metrics}
        place = rounds_to(self.curve(model, metric), target, known.get(metric, 1))
        return None if place is None else int(self._evaluated[place - 1]["round"])

    @property
    def time(self) -> float | None:
        """The virtual time of the last round, where the run has a clock (`pace`)."""
        return self.rows[-1]["pace"]["time"] if self.rows and "pace" in self.rows[-1] else None

    def time_to(self, model: str, metric: str, target: float) -> float | None:
        """The virtual time of the first round in which `metric` of `model` is at least as good as `target`.

        None where there is no such round, or the run has no clock (`pace`).
        """
        reached = self.rounds_to(model, metric, target)
        if reached is None or self.time is None:
            return None
        return next(float(row["pace"]["time"]) for row in self.rows if row["round"] == reached)

    def bytes(self) -> dict[str, int]:
        """Bytes sent down to and up from all clients, over all rounds."""
        return {way: sum(sum(row["bytes"][way].values()) for row in self.rows) for way in ("down", "up")}

    def bytes_by_field(self) -> dict[str, dict[str, int]]:
        """Bytes by direction and field of the message, over all rounds."""
        total: dict[str, dict[str, int]] = {"down": {}, "up": {}}
        for row in self.rows:
            for way, fields in row["bytes"].items():
                for name, count in fields.items():
                    total[way][name] = total[way].get(name, 0) + count
        return total

    def to_frame(self) -> Any:
        """A pandas data frame: a row for each evaluated round and model."""
        import pandas

        return pandas.DataFrame(
            {
                "round": row["round"],
                "model": model,
                **{metric.key: scores.get(metric.key) for metric in self.metrics},
                **{f"bytes_{way}": sum(fields.values()) for way, fields in row["bytes"].items()},
                "seconds": sum(row["seconds"].values()),
                **({"time": row["pace"]["time"]} if "pace" in row else {}),
            }
            for row in self._evaluated
            for model, scores in row["models"].items()
        )

    def plot(self, *metrics: str) -> Any:
        """A matplotlib figure with a panel for each of these `metrics`, by their keys; for all when none is named."""
        return views["curves"](self, metrics)

    def _repr_html_(self) -> str:
        """The result as a notebook shows it."""
        return str(views["notebook"](self))

    def summary(self) -> dict[str, Any]:
        """The result as one JSON document."""
        document = {
            "method": self.experiment["method"]["name"],
            "data": self.experiment["data"],
            "seed": self.experiment["seed"],
            "rounds": len(self.rows),
            "models": {m: {**self.last(m), "best": self.best(m), "mixtures": self.mixtures(m)} for m in self.models},
            "bytes": self.bytes(),
            "bytes_by_field": self.bytes_by_field(),
            "seconds": round(self.seconds, 3),
            **({} if self.time is None else {"time": self.time}),
            "health": self.health.plain(),
            **({"stopped": self.stopped} if self.stopped else {}),
            "run_dir": None if self.run_dir is None else str(self.run_dir),
            "experiment": self.experiment,
        }
        trust = [{"round": r["round"], **r["identification"]} for r in self.rows if "identification" in r]
        if trust:
            document["identification"] = trust
        return document
