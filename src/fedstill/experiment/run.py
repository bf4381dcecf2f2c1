"""Running an experiment, from the start or from a checkpoint."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from fedstill.core import rng
from fedstill.core.errors import RunError, UsageError
from fedstill.core.loop import Round, Transport, rounds
from fedstill.core.method import Env, Method
from fedstill.core.shelf import Storage
from fedstill.core.turn import method_state
from fedstill.core.value import plain
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.metrics import domain_correlation, identification
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.stage import Stage, stage
from fedstill.transports import Dropping, Inline, Processes


class Watcher:
    """Who follows a run: told of its start, every round, and anything worth a line. This one says nothing."""

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """The stage is set; `first` is the first round to come."""

    def round(self, row: Mapping[str, Any]) -> None:
        """A round has ended."""

    def note(self, text: str) -> None:
        """Something the user should know."""


def run(
    method: Method[Any, Any, Any, Any] | str | Mapping[str, Any] = "fedavg",
    *,
    out: str | Path | None = "runs",
    name: str | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Result:
    """Run an experiment and return its result.

        result = run(FedAvg(lr=0.05), data="mnist-5k", clients=20, active=0.2, alpha=0.1, rounds=20, seed=1)

    `settings` are the fields of `Experiment` (and `alpha` for the partition's). Data may be a name, a file, a folder,
    arrays or a list with each client's own (x, y); a model a name, `"package.module:factory"` or a torch module. The
    run is written to `out`/`name`; `out=None` writes nothing.
    """
    return start(experiment({"method": method, **settings}), out=out, name=name, watcher=watcher)


def start(
    plan: Experiment,
    *,
    out: str | Path | None = "runs",
    name: str | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Run an experiment from its first round."""
    _here(plan)
    watcher = watcher or Watcher()
    storage = Storage(None, plan.memory << 20)
    ready = stage(plan, storage)  # before the folder is made: bad input leaves nothing behind
    folder = None
    if out is not None:
        path = Path(out) / name if name else _free(Path(out), plan)
        folder = RunDir.create(path, plan.plain(), " ".join(sys.argv))
        ready = replace(ready, env=replace(ready.env, storage=folder.storage))
        folder.write("partition.json", _partition(ready))
    return _follow(plan, ready, folder, None, watcher)


def resume(
    path: str | Path,
    *,
    watcher: Watcher | None = None,
    rounds: int | None = None,
    workers: str | None = None,
    **given: Any,
) -> Result:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped.

    Data or a model that were objects, not names, must be `given` again. More `rounds` than planned may be asked for.
    """
    watcher = watcher or Watcher()
    folder = RunDir.open(Path(path))
    settings = folder.read("experiment.json")
    for key in ("data", "model", "public"):
        if str(settings.get(key, "")).startswith("<") and key not in given:
            raise UsageError(f"{path}: {key} was given as an object; resume with fedstill.resume(..., {key}=...)")
    more = {k: v for k, v in {"rounds": rounds, "workers": workers}.items() if v is not None}
    plan = experiment({**settings, **more, **given})
    _here(plan)
    if more:
        folder.write("experiment.json", plan.plain())
    ready = stage(plan, folder.storage)
    if folder.read("partition.json") not in (None, _partition(ready)):
        raise RunError(f"{path}: the data are no longer split as they were; is it the same data set?")
    checkpoint, notes = folder.latest()
    for note in notes:
        watcher.note(note)
    folder.rewind(checkpoint.round if checkpoint else 0)
    return _follow(plan, ready, folder, checkpoint, watcher)


def _follow(
    plan: Experiment, ready: Stage, folder: RunDir | None, checkpoint: Checkpoint | None, watcher: Watcher
) -> Result:
    """Drive the loop; evaluate, write and tell after every round."""
    states = checkpoint.clients if checkpoint else ready.env.shelf("clients")
    with one_thread(), transport(plan, ready, states) as link:
        return drive(plan, ready, link, Examiner(plan, ready, link), folder, checkpoint, watcher)


class Examines(Protocol):
    """Who makes a round's line of metrics."""

    def row(self, done: Round) -> dict[str, Any]:
        """Everything about a round, as plain numbers, text and lists."""


def drive(
    plan: Experiment,
    ready: Stage,
    link: Transport,
    examiner: Examines,
    folder: RunDir | None,
    checkpoint: Checkpoint | None,
    watcher: Watcher,
) -> Result:
    """Drive the loop over an open transport."""
    first = checkpoint.round if checkpoint else 0
    rows = folder.rows() if folder else []
    watcher.started(plan, ready, folder.path if folder else None, first)
    for note in ready.notes:
        watcher.note(note)
    server = checkpoint.server if checkpoint else None
    sample = partial(active, plan)
    for done in rounds(plan.method, ready.env, link, sample, plan.rounds, server, first, plan.wrappers):
        row = examiner.row(done)
        rows.append(row)
        number = done.number + 1
        if folder:
            folder.append(row)
            if number % plan.checkpoint_every == 0 or number == plan.rounds:
                folder.checkpoint(Checkpoint(number, done.server, link.states))
        watcher.round(row)
    result = Result(plan.plain(), rows, folder.path if folder else None, sum(sum(r["seconds"].values()) for r in rows))
    if folder:
        folder.write("result.json", result.summary())
    return result


class Examiner:
    """Makes a round's line of metrics."""

    def __init__(self, plan: Experiment, ready: Stage, link: Transport) -> None:
        self.plan = plan
        self.env = ready.env
        self.exam = ready.exam
        self.counts = ready.counts
        self.link = link
        self.personal: dict[int, tuple[int, float | None, float | None]] = {}

    def row(self, done: Round) -> dict[str, Any]:
        """Everything about a round, as plain numbers, text and lists."""
        row = row_of(self.plan, self.env, done, self.scores)
        facts = row["facts"]
        if facts.get("domain_weights"):
            facts["domain_correlation"] = domain_correlation(facts["domain_weights"], facts["made"], self.counts)
        return row

    def scores(self, done: Round) -> dict[str, Any]:
        """Every model's metrics."""
        env = self.env.at(done.number)
        found: dict[str, Any] = {}
        whose = self.plan.method.architectures(env, done.server)
        for name, weights in self.plan.method.models(env, done.server).items():
            correct = self.exam.correct(self.env.module(weights, whose.get(name)))
            found[name] = dict(self.exam.scores(self.exam.local_accuracies(correct), self.exam.accuracy(correct)))
            if self.plan.per_class:
                found[name]["per_class"] = self.exam.per_class(correct)
        trained = [(w, r.client) for r in done.replies if (w := getattr(r.upload, "weights", None)) is not None]
        if self.plan.per_class and found and trained:
            after = [self.exam.per_class(self.exam.correct(self.env.module(*upload))) for upload in trained]
            found[next(iter(found))]["per_class_after_training"] = after
        return {**found, **self._own()}

    def _own(self) -> dict[str, Any]:
        """The clients' own models, examined when they have changed."""
        for client, entry in self.link.states.entries.items():
            if self.personal.get(client, (-1,))[0] == entry.version:
                continue
            weights = self.plan.method.own(self.env, method_state(entry.read()))
            if weights is None:
                return {}
            correct = self.exam.correct(self.env.module(weights, client))
            local = self.exam.local_accuracies(correct, [client])[0]
            self.personal[client] = (entry.version, local, self.exam.accuracy(correct))
        if not self.personal:
            return {}
        local_all = [self.personal.get(k, (0, None, None))[1] for k in range(self.env.clients)]
        whole = {k: a for k, (_, _, a) in self.personal.items() if a is not None}
        scores = dict(self.exam.scores(local_all, _mean(list(whole.values()))))
        scores["accuracy_median"] = median(whole.values()) if whole else None
        if self.plan.malicious:
            scores["accuracy_honest"] = _mean([a for k, a in whole.items() if k not in self.plan.malicious_clients])
        return {"personal": scores}


def row_of(plan: Experiment, env: Env, done: Round, scores: Callable[[Round], dict[str, Any]]) -> dict[str, Any]:
    """Everything about a round, as plain numbers, text and lists."""
    began = time.perf_counter()
    env, method = env.at(done.number), plan.method
    facts = dict(method.facts(env, done.server))
    row: dict[str, Any] = {
        "round": done.number + 1,
        "active": sorted([r.client for r in done.replies] + list(done.missing)),
        "missing": {str(k): why for k, why in done.missing.items()},
        "models": {},
        "bytes": done.bytes,
        "client_seconds": {str(r.client): round(r.seconds, 4) for r in done.replies},
    }
    last = done.number + 1 == plan.rounds
    if (done.number + 1) % plan.evaluate_every == 0 or last:
        row["models"] = scores(done)
    if "trusted" in facts and plan.malicious:
        found = identification(facts["trusted"], facts["answered"], plan.malicious_clients)
        row["identification"] = {"trusted": facts["trusted"], **found}
    row["facts"] = facts
    row["seconds"] = {**done.seconds, "evaluate": time.perf_counter() - began}
    return row


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def active(plan: Experiment, t: int) -> list[int]:
    """The clients active in a round: m of K, uniformly, without replacement."""
    if not plan.method.federated:
        return [0]
    stream = rng.numpy_stream(plan.seed, "active", t)
    return sorted(int(k) for k in stream.choice(plan.clients, plan.active_count, replace=False))


@contextmanager
def transport(plan: Experiment, ready: Stage, states: Any) -> Iterator[Any]:
    """The transport that `workers` asks for; closed at the end."""
    cores = os.cpu_count() or 1
    count = cores if plan.workers in ("auto", "threads") else 1 if plan.workers == "inline" else int(plan.workers)
    count = min(count, plan.active_count)
    inner: Any
    if plan.transport == "flower-simulation":
        from fedstill.flower.simulation import FlowerSimulation

        nodes = plan.active_count if plan.workers == "auto" else count
        inner = FlowerSimulation(plan, states, nodes)
    elif (
        plan.workers in ("inline", "threads") or count == 1 or ready.env.device.type != "cpu" or not hasattr(os, "fork")
    ):
        inner = Inline(plan.method, ready.party, states, threads=count if plan.workers == "threads" else 1)
    else:
        inner = Processes(plan.method, ready.party, states, ready.env, count)
    try:
        yield Dropping(inner, plan.drop) if plan.drop else inner
    finally:
        inner.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for each operation: small models are faster so, and every transport gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _here(plan: Experiment) -> None:
    if plan.transport == "flower":
        raise UsageError(
            'transport = "flower": the data are on sites; start it, and go on with it, by `fedstill deploy`'
        )


def _partition(ready: Stage) -> dict[str, Any]:
    return {"counts": ready.counts.tolist(), "class_names": list(ready.class_names), "notes": list(ready.notes)}


def _free(out: Path, plan: Experiment) -> Path:
    """A folder name that says what runs, and is not taken."""
    data = plan.data if isinstance(plan.data, str) else "own-data"
    alpha = plain(plan.partition).get("alpha")
    stem = "-".join([plan.title, Path(data).stem, *([f"a{alpha:g}"] if alpha else []), f"s{plan.seed}"])
    return next(p for i in range(1, 10**6) if not (p := out / (stem if i == 1 else f"{stem}-{i}")).exists())
