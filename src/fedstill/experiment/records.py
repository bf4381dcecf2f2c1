"""Records: one line of JSON for every run that stands behind a number, small enough to be kept with the code.

A record holds the settings, the data's fingerprint, the commit and versions, the machine, the metrics' curves, and
digests by which a second run can be told to be the same, bit by bit. `archive.py` keeps them in a folder.
"""

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstill.core.errors import FedstillError, RunError
from fedstill.core.record import leaves
from fedstill.experiment.config import Experiment, experiment, given_as_objects, identity
from fedstill.experiment.drive import direction, exhausted
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import RunDir, commit
from fedstill.experiment.stage import data_fingerprint

DIGITS = 6
"""Significant digits of a curve's values; the digests are of the full values."""


@dataclass(frozen=True)
class Record:
    """One run: what was asked, with what it was made, and what came of it."""

    id: str
    """Twelve hexadecimal digits, from the settings with their seed."""
    cell: str
    """The preset's cell for which it was run, `preset · row × column`; empty for a run of one's own."""
    experiment: Mapping[str, Any]
    data: str
    """Fingerprint of the data's content."""
    split: str
    """Fingerprint of who trains, and is tested, on which samples."""
    commit: str
    """The code's commit, with `+` where files were changed; empty outside a checkout."""
    versions: Mapping[str, Any]
    """Versions and the machine."""
    date: str
    rounds: Sequence[int]
    """The rounds that were examined."""
    curves: Mapping[str, Mapping[str, Sequence[float | None]]]
    """Model → metric → its value in each of `rounds`."""
    per_client: Mapping[str, Sequence[float | None]]
    """Model → the clients' accuracies in the last round."""
    facts: Mapping[str, Sequence[float | None]]
    """What the method reported, round by round."""
    identification: Sequence[Sequence[float]]
    """Round, precision and recall, where there were malicious clients."""
    seconds: Mapping[str, float]
    """Wall time by phase, over all rounds."""
    cpu_seconds: float | None
    """Processor time of the whole run, where it was not interrupted."""
    modules: Mapping[str, float]
    """Mean seconds a round of the server's modules."""
    bytes: Mapping[str, Mapping[str, int]]
    """Bytes down and up by field, over all rounds."""
    bits: str
    """Digest of every score of every round."""
    weights: str
    """Digest of all tensors of the server's last state."""

    @property
    def label(self) -> str:
        """Method, data, α and seed, for the eye."""
        e = self.experiment
        alpha = e.get("partition", {}).get("alpha")
        shape = "" if alpha is None else f" α {alpha:g}"
        return f"{e['method']['name']} {Path(str(e['data'])).stem}{shape} seed {e['seed']}"

    @cached_property
    def plan(self) -> Experiment | None:
        """The experiment as today's code reads it; None where it no longer can."""
        try:
            return experiment(self.experiment)
        except FedstillError:
            return None

    @cached_property
    def question(self) -> str | None:
        """What the record answers: its settings without those that never change the bits; None: unreadable today."""
        return None if self.plan is None else question(self.plan)

    @cached_property
    def data_named(self) -> str:
        """What says which data these are: settings, or where they name none (arrays of Python's) the record's id.

        A public set that is a share of the data is none of its own.
        """
        if "data" in given_as_objects(self.experiment):
            return self.id
        public = self.experiment.get("public")
        apart = public if isinstance(public, str) and public != "train" else None
        return json.dumps([self.experiment["data"], apart, self.experiment.get("reading")], sort_keys=True)

    def result(self, rounds: int | None = None) -> Result:
        """The record as a run's result, up to a round: everything that tables and claims read."""
        last = rounds or int(self.experiment["rounds"])
        whole = int(self.experiment["rounds"])
        rows = []
        for t in range(1, last + 1):
            row: dict[str, Any] = {"round": t, "models": {}, "facts": {}}
            row["seconds"] = {phase: spent / whole for phase, spent in self.seconds.items()}
            row["bytes"] = {
                way: {field: _share(n, t, whole) for field, n in sent.items()} for way, sent in self.bytes.items()
            }
            row["facts"] = {name: curve[t - 1] for name, curve in self.facts.items() if curve[t - 1] is not None}
            rows.append(row)
        for place, t in enumerate(self.rounds):
            if t <= last:
                rows[t - 1]["models"] = {
                    model: {metric: curve[place] for metric, curve in known.items()}
                    for model, known in self.curves.items()
                }
        for number, precision, recall in self.identification:
            if number <= last:
                rows[int(number) - 1]["identification"] = {"precision": precision, "recall": recall}
        if last == whole:
            for model, each in self.per_client.items():
                rows[-1]["models"][model]["accuracy_per_client"] = list(each)
        if self.modules and rows:
            rows[-1]["facts"]["module_seconds"] = dict(self.modules)
        wall = sum(self.seconds.values()) * last / whole
        cpu = None if self.cpu_seconds is None else self.cpu_seconds * last / whole
        return Result({**self.experiment, "rounds": last}, rows, None, wall, recorded=True, cpu_seconds=cpu)

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n"


def question(plan: Experiment) -> str:
    """What a run of this plan would answer, as text to compare; a longer run answers what a shorter one would."""
    return json.dumps(identity(plan.plain(), "rounds", reporting=False), sort_keys=True)


def record_id(plan: Experiment) -> str:
    """The id of this plan's record."""
    return hashlib.sha256(json.dumps(identity(plan.plain()), sort_keys=True).encode()).hexdigest()[:12]


def record_of(path: Path, cell: str = "", cpu_seconds: float | None = None) -> Record:
    """The record of a finished run, from its folder; `cell` says for which cell of a preset it was made."""
    folder = RunDir.open(path)
    plan = experiment(folder.read("experiment.json"))
    rows = folder.rows()
    _refuse_unfinished(path, plan, rows)
    seen = [row for row in rows if row["models"]]
    dealt = folder.read("partition.json") or {}
    versions = dict(folder.read("versions.json") or {})
    versions.pop("command", None)
    return Record(
        id=record_id(plan),
        cell=cell,
        experiment=plan.plain(),
        data=plan.fingerprint or data_fingerprint(plan),
        split=str((dealt.get("fingerprint") or {}).get("split") or _digest(json.dumps(dealt.get("counts")).encode())),
        commit=str(versions.pop("commit", "")),
        versions=versions,
        date=datetime.fromtimestamp((path / "metrics.jsonl").stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M"),
        rounds=[int(row["round"]) for row in seen],
        curves=_curves(seen),
        per_client={m: [_short(a) for a in s.get("accuracy_per_client", [])] for m, s in seen[-1]["models"].items()},
        facts=_facts(rows),
        identification=[
            [row["round"], _short(row["identification"]["precision"]), _short(row["identification"]["recall"])]
            for row in rows
            if "identification" in row
        ],
        seconds=_summed([row["seconds"] for row in rows]),
        cpu_seconds=None if cpu_seconds is None else round(cpu_seconds, 2),
        modules=_modules(rows),
        bytes={way: _summed([row["bytes"][way] for row in rows]) for way in ("down", "up")},
        bits=scores_digest(rows),
        weights=weights_digest(folder),
    )


def _refuse_unfinished(path: Path, plan: Experiment, rows: Sequence[Mapping[str, Any]]) -> None:
    """A record is of a whole run: it is found by whoever asks for all of its rounds."""
    if len(rows) >= plan.rounds:
        return
    why = Result.read(path).stopped
    if not why:
        raise RunError(f"{path}: {len(rows)} of {plan.rounds} rounds so far; only a finished run becomes a record")
    by = " by patience" if why == exhausted(rows, plan.patience, direction(plan), plan.method.judged_by) else ""
    raise RunError(
        f"{path}: stopped{by} after {len(rows)} of {plan.rounds} rounds ({why}); only a whole run becomes a record"
    )


def scores_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Digest of who was active and of every score, in every round."""
    scores = [[row["round"], row["active"], row["models"]] for row in rows]
    return _digest(json.dumps(scores, sort_keys=True).encode())


def weights_digest(folder: RunDir) -> str:
    """Digest of all tensors of the server's state after the last round; an error without a whole checkpoint of it."""
    state, notes = folder.latest()
    last = len(folder.rows())
    if state is None or state.round != last:
        why = f" ({notes[0]})" if notes else ""
        mend = f"`fedstill resume {folder.path}` makes one"
        raise RunError(f"{folder.path}: no whole checkpoint of its last round, {last}{why}; {mend}")
    return tensors_digest(state.server)


def tensors_digest(record: Any) -> str:
    """Digest of all tensors of a record, with their names, shapes and types."""
    mark = hashlib.sha256()
    for path, tensor in sorted(leaves(record)):
        mark.update(f"{path}{tuple(tensor.shape)}{tensor.dtype}".encode())
        mark.update(tensor.contiguous().cpu().numpy().tobytes())
    return mark.hexdigest()[:16]


def _share(total: int, t: int, whole: int) -> int:
    """Round t's part of bytes that were counted over all rounds: the parts of all rounds add up to the total.

    >>> [_share(11, t, 3) for t in (1, 2, 3)]
    [3, 4, 4]
    """
    return total * t // whole - total * (t - 1) // whole


def made_by(record: Record) -> str:
    """By which commit a record was made, and whether its code can be had here."""
    if not record.commit:
        return "made outside a checkout: its commit is unknown"
    name = record.commit.removesuffix("+")
    made = f"made by commit {name}{' with files changed since' if record.commit.endswith('+') else ''}"
    if not commit():
        return made
    asked = ["git", "cat-file", "-e", f"{name}^{{commit}}"]
    there = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, check=False).returncode == 0
    return f"{made} (git checkout {name})" if there else f"{made}, which is not in this repository"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and value == value else value


def _plain(value: Any) -> float | None:
    """A number, or the mean of a list of numbers."""
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        value = fmean(value)
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return _short(float(value)) if number else None


def _curves(seen: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    curves: dict[str, dict[str, list[float | None]]] = {}
    for model, scores in seen[-1]["models"].items():
        numbers = [name for name, value in scores.items() if isinstance(value, int | float) or value is None]
        curves[model] = {n: [_plain(row["models"].get(model, {}).get(n)) for row in seen] for n in numbers}
    return curves


FACTS = ("global_logits", "client_logits", "domain_correlation")
"""What methods report round by round and tables show."""


def _facts(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    there = [name for name in FACTS if any(name in row.get("facts", {}) for row in rows)]
    return {name: [_plain(row.get("facts", {}).get(name)) for row in rows] for name in there}


def _modules(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    spent = [row["facts"]["module_seconds"] for row in rows if row.get("facts", {}).get("module_seconds")]
    return {name: round(fmean(s[name] for s in spent if name in s), 4) for name in (spent[-1] if spent else {})}


def _summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in total.items()}
