"""Many runs, several at once: each in a process of its own, finished ones left alone, stopped ones resumed.

A run here takes its clients one after the other (`workers = inline`), which gives the same bits as any other way, so
that as many runs as there are cores go on side by side. A run whose parent is gone ends itself; what it had written
is where the next start goes on.
"""

import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from fedstill.core.errors import FedstillError, UsageError
from fedstill.experiment.config import Experiment, experiment, identity
from fedstill.experiment.lock import writing
from fedstill.experiment.result import Result
from fedstill.experiment.run import resume, start
from fedstill.experiment.stage import data_fingerprint
from fedstill.experiment.watcher import Watcher
from fedstill.transports.processes import end_with, forks

LAST_ERROR = "last_error.txt"


@dataclass(frozen=True)
class Job:
    """A run to make, and its folder."""

    plan: Experiment
    path: Path


@dataclass(frozen=True)
class News:
    """A job's new state: `kept` (was finished already), `started`, `round`, `done` or `failed`."""

    job: Job
    what: str
    row: Mapping[str, Any] | None = None
    reason: str = ""


def job(plan: Experiment, out: Path) -> Job:
    """The job of an experiment: its folder under `out` says what runs, with a hash of all that decides its bits."""
    settings = plan.plain()
    for name in plan.objects:
        raise UsageError(f"{name}: runs in processes of their own need a name or a path, not an object")
    digest = hashlib.sha256(json.dumps(identity(settings, "seed"), sort_keys=True).encode()).hexdigest()[:10]
    method, data, *alpha = plan.folder_words
    words = [method, data[:24], *alpha, digest]
    return Job(replace(plan, workers="inline"), out / "-".join(words) / f"seed-{plan.seed}")


def finished(path: Path) -> bool:
    """Has this run come to its end?"""
    try:
        plan, end = (json.loads((path / name).read_text()) for name in ("experiment.json", "result.json"))
        stopped = end.get("stopped") and identity(end["experiment"]) == identity(plan)
        return bool(end["rounds"] >= plan["rounds"] or stopped)
    except (OSError, ValueError, KeyError):
        return False


def other_data(job: Job) -> str | None:
    """What is wrong with keeping a finished run: its data are not those of its name or path today; None: nothing.

    Data that are not on this machine cannot be compared; the run is kept then.
    """
    had = json.loads((job.path / "experiment.json").read_text()).get("fingerprint")
    try:
        data = tuple(job.plan.data) if isinstance(job.plan.data, list) else job.plan.data
        now = had and _fingerprint_now(data, job.plan.public, job.plan.reading)
    except FedstillError:
        return None
    if had == now:
        return None
    return f"finished on other data (fingerprint {had}, {job.plan.data} has {now} now): move {job.path} away"


@cache
def _fingerprint_now(data: str | tuple[str, ...], public: Any, reading: Any) -> str:
    """The fingerprint of data given by a name or path, or a path for each client; read once for however many runs."""
    each = {"data": list(data), "clients": len(data)} if isinstance(data, tuple) else {"data": data}
    return data_fingerprint(Experiment(**each, public=public, reading=reading))


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Python has it on Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Runs(Protocol):
    """Something that runs are made for: a point of a sweep, a cell of a table."""

    @property
    def jobs(self) -> Sequence[Job]:
        """Its runs, one for each seed."""


def carry_out(
    wanted: Sequence[Runs], out: Path, at_once: int | None = None, tell: Callable[[News], None] = lambda news: None
) -> dict[Path, str]:
    """Run what is missing into `out`, first seed first; returns why runs failed, by folder."""
    jobs = [one for runs in wanted for one in runs.jobs]
    out.mkdir(parents=True, exist_ok=True)
    with writing(out, wait=5):
        return run_all(sorted(jobs, key=lambda one: one.plan.seed), at_once, tell)


def results(wanted: Sequence[Runs]) -> dict[Path, Result]:
    """What the finished runs gave, by folder."""
    paths = dict.fromkeys(one.path for runs in wanted for one in runs.jobs)
    return {path: Result.read(path) for path in paths if finished(path)}


def run_all(
    jobs: Sequence[Job],
    at_once: int | None = None,
    tell: Callable[[News], None] = lambda news: None,
    until: float = math.inf,
    wanted: Callable[[Job], bool] = lambda job: True,
) -> dict[Path, str]:
    """Run what is not finished, `at_once` at a time; returns why jobs failed, by folder. The others go on.

    What still runs at `until` (by `time.monotonic`) is stopped; the next call takes it up where it was. A job that is
    no longer `wanted` when its turn comes is not run.
    """
    unique = list({j.path: j for j in jobs}.values())
    missing = []
    failed: dict[Path, str] = {}
    for one in unique:
        if not finished(one.path):
            missing.append(one)
        elif wrong := other_data(one):
            failed[one.path] = wrong
            tell(News(one, "failed", reason=wrong))
        else:
            tell(News(one, "kept"))
    busy: dict[Connection, tuple[Job, Any]] = {}
    context: Any = multiprocessing.get_context("fork" if forks() else "spawn")
    try:
        while (missing or busy) and time.monotonic() < until:
            while missing and len(busy) < (at_once or cores()):
                one = missing.pop(0)
                if not wanted(one):
                    continue
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work, args=(one.plan.plain(), one.path, theirs, os.getpid()), daemon=True
                )
                process.start()
                theirs.close()
                busy[ours] = (one, process)
                tell(News(one, "started"))
            if not busy:
                break
            for pipe in wait(list(busy), None if until == math.inf else max(0.0, until - time.monotonic())):
                assert isinstance(pipe, Connection)
                one, process = busy[pipe]
                news = _hear(pipe, one, process)
                if news.what != "round":
                    del busy[pipe]
                    process.join()
                    pipe.close()
                if news.what == "failed":
                    failed[one.path] = news.reason
                tell(news)
    finally:
        for pipe, (_, process) in busy.items():
            process.terminate()
            process.join()
            pipe.close()
    return failed


def _hear(pipe: Connection, one: Job, process: Any) -> News:
    try:
        word = json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        process.join()
        return News(one, "failed", reason=f"its process ended with code {process.exitcode}")
    return News(one, word["what"], word.get("row"), word.get("reason", ""))


class _Messenger(Watcher):
    """Tells the parent of every round."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def round(self, row: Mapping[str, Any]) -> None:
        """Round and scores; the rest is in the run's folder."""
        scores = {name: {m: s.get(m) for m in ("amp", "accuracy")} for name, s in row["models"].items()}
        _send(self.pipe, {"what": "round", "row": {"round": row["round"], "models": scores, "seconds": row["seconds"]}})


def _send(pipe: Connection, word: Mapping[str, Any]) -> None:
    pipe.send_bytes(json.dumps(word).encode())


def _work(settings: Mapping[str, Any], path: Path, pipe: Connection, parent: int) -> None:
    """One run in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    try:
        row = {}
        if (path / "experiment.json").exists():
            resume(path, watcher=_Messenger(pipe))
        else:
            start(experiment(settings), out=path.parent, name=path.name, watcher=_Messenger(pipe))
            row["cpu_seconds"] = time.process_time()  # of the whole run: nothing of it was done elsewhere
        (path / LAST_ERROR).unlink(missing_ok=True)  # of an earlier attempt
        _send(pipe, {"what": "done", "row": row})
    except FedstillError as error:
        _keep(path, f"{error}\n")
        _send(pipe, {"what": "failed", "reason": str(error)})
    except Exception as error:
        _keep(path, traceback.format_exc())
        _send(pipe, {"what": "failed", "reason": f"{type(error).__name__}: {error} (see {path / LAST_ERROR})"})


def _keep(path: Path, why: str) -> None:
    """Write why a run failed into its folder, where that can be written."""
    with suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
        (path / LAST_ERROR).write_text(why, encoding="utf-8")
