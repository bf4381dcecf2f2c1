"""Running an experiment, from the start or from a checkpoint."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import RunError, UsageError
from fedstill.core.method import Method
from fedstill.core.shelf import Storage
from fedstill.core.value import plain
from fedstill.experiment.config import Experiment, experiment, given_as_objects
from fedstill.experiment.drive import active, drive, one_thread
from fedstill.experiment.examine import Examiner
from fedstill.experiment.link import transport
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.stage import Stage, stage
from fedstill.experiment.watcher import Watcher

__all__ = ["Watcher", "active", "one_thread", "resume", "run", "start", "transport"]


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
        folder.write("metrics.json", [shown.plain() for shown in ready.exam.scorer.shown])
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
    for key in given_as_objects(settings):
        if key not in given:
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
