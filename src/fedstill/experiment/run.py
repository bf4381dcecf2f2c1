"""Running an experiment, from the start or from a checkpoint."""

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import DataError, UsageError
from fedstill.core.method import Method
from fedstill.core.shelf import Storage
from fedstill.experiment.config import Experiment, experiment, given_as_objects
from fedstill.experiment.drive import active, direction, drive, ended, exhausted, one_thread
from fedstill.experiment.examine import Examiner
from fedstill.experiment.gallery import write_gallery
from fedstill.experiment.link import transport
from fedstill.experiment.lock import writing
from fedstill.experiment.result import Result, views
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.stage import Stage, stage
from fedstill.experiment.watcher import Together, Watcher, Watchers, together

__all__ = ["Watcher", "active", "one_thread", "resume", "run", "start", "transport"]


def run(
    method: Method[Any, Any, Any, Any] | str | Mapping[str, Any] = "fedavg",
    *,
    out: str | Path | None = "runs",
    name: str | None = None,
    watcher: Watchers = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Run an experiment and return its result.

        result = run(FedAvg(lr=0.05), data="mnist-5k", clients=20, active=0.2, alpha=0.1, rounds=20, seed=1)

    Args:
        method: a method with its settings, or its name.
        out: the folder that runs are written to; None writes nothing.
        name: the run's own folder there (default: method, data, α and seed).
        watcher: who is told of every round, one `Watcher` or several.
        progress: whether rounds are shown as they end (default: in a terminal and in a notebook).
        settings: the fields of `Experiment`, and `alpha` for the partition's. Data may be a name, a file, a folder,
            arrays or a list with each client's own (x, y); a model a name, `"package.module:factory"` or a module of
            torch.

    Returns:
        The run's experiment, its metrics round by round, and its models.
    """
    plan = experiment({"method": method, **settings})
    with _shown(progress) as table:
        return start(plan, out=out, name=name, watcher=Together(*table, together(watcher)))


@contextmanager
def _shown(progress: bool | None) -> Iterator[list[Watcher]]:
    """The live table, where somebody looks or it was asked for."""
    if progress is None:
        progress = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not progress:
        yield []
        return
    with views["live"]() as table:
        yield [table]


def start(
    plan: Experiment, *, out: str | Path | None = "runs", name: str | None = None, watcher: Watchers = None
) -> Result:
    """Run an experiment from its first round; arguments as of `run`."""
    _here(plan)
    ready = stage(plan, Storage(None, plan.memory << 20))  # before the folder is made: bad input leaves nothing behind
    plan.method.init_client(ready.env.at(0, 0))  # a part of the method that cannot be built is named now, too
    if ready.fingerprint is not None:
        plan = replace(plan, fingerprint=ready.fingerprint.data)
    if out is None:
        return _follow(plan, ready, None, None, together(watcher))
    path = Path(out) / name if name else _free(Path(out), plan)
    RunDir.vacant(path)
    with writing(path):
        beside = {
            "partition.json": _partition(ready),
            "split.json": {"parts": [part.tolist() for part in ready.dealt]},
            "metrics.json": [shown.plain() for shown in ready.exam.scorer.shown],
        }
        folder = RunDir.create(path, plan.plain(), " ".join(sys.argv), beside)
        ready = replace(ready, env=replace(ready.env, storage=folder.storage))
        return _follow(plan, ready, folder, None, together(watcher))


def resume(
    path: str | Path,
    *,
    watcher: Watchers = None,
    rounds: int | None = None,
    workers: str | None = None,
    progress: bool | None = False,
    **given: Any,
) -> Result:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped.

    Args:
        path: the run's folder; one that another process writes is refused.
        watcher: as of `run`.
        rounds: more rounds than were planned.
        workers: others than before; they never change the result.
        progress: whether rounds are shown as they end (None: in a terminal and in a notebook).
        given: data or a model that were objects, not names, must be given again.

    Returns:
        The whole run's result; that of a run which was finished already, as it is.
    """
    folder = RunDir.open(Path(path))
    with writing(folder.path), _shown(progress) as table:
        return _resumed(folder, Together(*table, together(watcher)), {"rounds": rounds, "workers": workers}, given)


def _resumed(folder: RunDir, watcher: Watcher, more: Mapping[str, Any], given: Mapping[str, Any]) -> Result:
    settings, rows = folder.read("experiment.json"), folder.rows()
    changed = {name: value for name, value in more.items() if value is not None}
    if int(changed.get("rounds", len(rows))) < len(rows):
        raise UsageError(f"rounds = {changed['rounds']}: {folder.path} has done {len(rows)} rounds already")
    checkpoint, notes = folder.latest(len(rows))
    done = checkpoint.round if checkpoint else 0
    needed = [name for name in given_as_objects(settings) if name not in given]
    plan = experiment({**settings, **changed, **given})
    _here(plan)
    stopped = exhausted(rows[:done], plan.patience, direction(plan), plan.method.judged_by)
    if checkpoint and (stopped or done >= plan.rounds):
        for note in (*notes, f"finished: all {done} rounds are done" if not stopped else f"finished: {stopped}"):
            watcher.note(note)
        return ended(Result.of(settings, rows[:done], folder.path, stopped), plan, folder, watcher)
    if needed:
        name = needed[0]
        raise UsageError(f"{folder.path}: {name} was given as an object; resume with fedstill.resume(..., {name}=...)")
    ready = stage(plan, folder.storage)
    if not _as_before(folder.read("partition.json"), _partition(ready)):
        raise DataError(f"{folder.path}: the data are no longer split as they were; is it the same data set?")
    if plan.plain() != settings:
        folder.write("experiment.json", plan.plain())
    for note in notes:
        watcher.note(note)
    folder.rewind(done)
    return _follow(plan, ready, folder, checkpoint, watcher)


def _as_before(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    """Is the split what it was? A run that was stopped before it wrote its split, or wrote less of it, cannot tell."""
    return before is None or all(now[name] == value for name, value in before.items() if name in now)


def _follow(
    plan: Experiment, ready: Stage, folder: RunDir | None, checkpoint: Checkpoint | None, watcher: Watcher
) -> Result:
    """Drive the loop; evaluate, write and tell after every round."""
    states = checkpoint.clients if checkpoint else ready.env.shelf("clients")
    with one_thread(), transport(plan, ready, states) as link:
        result, clients = drive(plan, ready, link, Examiner(plan, ready), folder, checkpoint, watcher)
        if folder:
            write_gallery(folder.path, plan, ready.env, clients, len(result.rows), ready.exam.pool)
        return result


def _here(plan: Experiment) -> None:
    if plan.transport == "flower":
        raise UsageError(
            'transport = "flower": the data are on sites; start it, and go on with it, by `fedstill deploy`'
        )


def _partition(ready: Stage) -> dict[str, Any]:
    known = {
        "counts": ready.counts.tolist(),
        "class_names": list(ready.class_names),
        "notes": list(ready.notes),
        "fingerprint": None if ready.fingerprint is None else asdict(ready.fingerprint),
    }
    return {**known, **({"client_names": list(ready.client_names)} if ready.client_names else {})}


def _free(out: Path, plan: Experiment) -> Path:
    """A folder that says what runs, and is nobody else's: made here, so that two who start at once get two."""
    stem = "-".join([*plan.folder_words, f"s{plan.seed}"])
    for number in itertools.count(1):
        path = out / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if out.is_dir():
                continue
        except OSError:
            pass
        return path  # whoever writes there says what is wrong with it
    raise AssertionError
