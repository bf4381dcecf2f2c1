"""A run's folder: its experiment, metrics as they come, checkpoints, and the way back to any of them.

experiment.json     the full experiment          metrics.jsonl       one line a round, as it ends
partition.json      clients × classes, notes     checkpoints/        the last two: server, clients, round
versions.json       what it ran with             clients/, slots/    what is kept for each client, a file each
result.json         the end                      last_error.txt      why it stopped, if it did
signature.json      what using its models needs  .lock               who writes here
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedstill.core import record
from fedstill.core.errors import FedstillError, RunError, UsageError
from fedstill.core.flight import Flight
from fedstill.core.shelf import Shelf, Storage, reopen, shelves
from fedstill.experiment.lock import LOCKS

METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
FOLDERS = ("clients", "slots")
"""Where shelves keep their files."""


@record.record
class Checkpoint:
    """All the state there is after a round: the server's, the clients', which round it was, and replies under way."""

    round: int
    server: Any
    clients: Shelf
    flight: Flight | None = None


def writable(folder: Path) -> None:
    """Make the folder where there is none; refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror}); choose another --out") from None


class RunDir:
    """The files of one run."""

    def __init__(self, path: Path, memory: int = 1024) -> None:
        self.path = path
        self.storage = Storage(path, memory << 20)
        self.checksums: dict[str, str] = {}
        """Of the clients' files: they are never written twice under one name."""
        self.kept: dict[int, frozenset[str]] = {}
        """The checkpoints that this process wrote or goes on from, by round, and the clients' files each needs."""
        self.written = 0

    @classmethod
    def create(
        cls, path: Path, experiment: Mapping[str, Any], command: str, beside: Mapping[str, Any] | None = None
    ) -> "RunDir":
        """A new run's folder, with the files `beside` its settings; a round that was done is never written over."""
        cls.vacant(path)
        cls._clear(path)
        run = cls(path, int(experiment.get("memory", 1024)))
        for name, content in {"versions.json": {**versions(), "command": command}, **(beside or {})}.items():
            run.write(name, content)
        run.write("experiment.json", experiment)  # last: a folder is a run from here on
        return run

    @classmethod
    def vacant(cls, path: Path) -> None:
        """Make the folder where there is none; refuse one that cannot be written to, or holds a run that has begun.

        A run without a round that was done has nothing to lose. Whether another process works on its first is for the
        folder's lock to say: where there are no locks such a run counts as begun.
        """
        if (path / "experiment.json").exists() and (not LOCKS or _begun(path)):
            raise UsageError(f"{path}: holds a run already; resume it, or choose another --name")
        writable(path)

    @classmethod
    def _clear(cls, path: Path) -> None:
        """Forget a run that did no round: what its first turns kept, and why it stopped."""
        for name in ("experiment.json", METRICS, "last_error.txt"):  # first: without it the folder is no run
            (path / name).unlink(missing_ok=True)
        for name in (CHECKPOINTS, *FOLDERS):
            shutil.rmtree(path / name, ignore_errors=True)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """A run that is there already."""
        if not (path / "experiment.json").exists():
            raise UsageError(f"{path}: not a run (no experiment.json there)")
        return cls(path, int(cls(path).read("experiment.json").get("memory", 1024)))

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file, all of it or nothing."""
        with _Writing(self.path):
            record.write(self.path / name, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    def read(self, name: str) -> Any:
        """A JSON file of the run, None when it is not there."""
        file = self.path / name
        try:
            return json.loads(file.read_text()) if file.exists() else None
        except ValueError as error:
            raise RunError(f"{file}: damaged ({error})") from None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a round's metrics. The next checkpoint puts them on the disk: without it they are of no use there."""
        with _Writing(self.path), (self.path / METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All rounds' metrics; a last line that a crash cut off is left out, another that is damaged is an error."""
        file = self.path / METRICS
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                if number == len(lines):
                    break
                raise RunError(f"{file}: line {number} is damaged ({error})") from None
            if not isinstance(row, dict) or "round" not in row:
                raise RunError(f"{file}: line {number} is no round's metrics")
            rows.append(row)
        return rows

    def checkpoint(self, state: Checkpoint) -> None:
        """Write a checkpoint; keep it and the one before, and drop what no kept one needs."""
        with _Writing(self.path):
            if (self.path / METRICS).exists():
                record.secure(self.path / METRICS)
            held = list(shelves(state))
            for shelf in held:
                shelf.save()
            data = record.dumps(state)
            file = self._file(state.round)
            record.write(file, data)
            needed = {name: self._checksum(name) for shelf in held for name in shelf.names()}
            side = {"sha256": hashlib.sha256(data).hexdigest(), "files": needed}
            record.write(file.with_suffix(".json"), json.dumps(side).encode())
        self._sweep(state.round, frozenset(needed))

    def _sweep(self, newest: int, needed: frozenset[str]) -> None:
        """Drop all checkpoints but the newest and the one before it, and the clients' files that neither needs."""
        old = self.kept.pop(newest, frozenset())  # it was there already, and has been written anew
        self.kept[newest] = needed
        dropped = sorted(self.kept)[:-2]
        gone = old.union(*(self.kept.pop(t) for t in dropped))
        self.written += 1
        if self.written % 16 == 0:
            gone = gone.union(self._replaced(newest))
        for name in gone.difference(*self.kept.values()):
            (self.path / name).unlink(missing_ok=True)
            self.checksums.pop(name, None)
        for t in dropped:
            self._drop(t)

    def _replaced(self, newest: int) -> list[str]:
        """The clients' files of rounds before this one; some were replaced before any checkpoint needed them."""
        files = [file for folder in FOLDERS for file in (self.path / folder).glob("*.safetensors")]
        before = [file for file in files if int(file.stem.partition("-")[2]) < newest]
        return [f"{file.parent.name}/{file.name}" for file in before]

    def _drop(self, rounds: int) -> None:
        for file in (self._file(rounds).with_suffix(".json"), self._file(rounds)):
            file.unlink(missing_ok=True)

    def latest(self, told: int | None = None) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and a note on each that is not; none of a round after `told`, if given.

        Whoever goes on with a run gives the number of its lines: of a later round the lines before it are lost.
        """
        notes: list[str] = []
        for t in reversed(self._rounds()):
            if told is not None and t > told:
                notes.append(f"{METRICS} ends with round {told}; going back from the checkpoint of round {t}")
                continue
            try:
                data = self._file(t).read_bytes()
                side = self.read(f"checkpoints/{t:06d}.json")
                if side is None or hashlib.sha256(data).hexdigest() != side["sha256"]:
                    raise FedstillError("its checksum does not match")
                self._whole(side["files"])
                state = record.loads(data, reopen(self.storage))
                assert isinstance(state, Checkpoint)
                return state, notes
            except (FedstillError, OSError) as error:
                notes.append(f"checkpoint of round {t} is damaged ({error}); going back to the one before")
        return None, notes

    def _checksum(self, name: str) -> str:
        """The checksum of a client's file, computed once."""
        if name not in self.checksums:
            self.checksums[name] = hashlib.sha256((self.path / name).read_bytes()).hexdigest()
        return self.checksums[name]

    def _whole(self, files: Mapping[str, str]) -> None:
        """Refuse a checkpoint one of whose clients' files was changed: each is there by its checksum."""
        for name, checksum in files.items():
            record.load(self.path / name)
            if hashlib.sha256((self.path / name).read_bytes()).hexdigest() != checksum:
                raise FedstillError(f"{name}: its checksum does not match")
            self.checksums[name] = checksum

    def rewind(self, rounds: int) -> None:
        """Forget what came after this round: metrics, checkpoints, and files that no kept checkpoint needs."""
        lines = [json.dumps(row) + "\n" for row in self.rows() if row["round"] <= rounds]
        with _Writing(self.path):
            record.write(self.path / METRICS, "".join(lines).encode())
            for t in self._rounds():
                if t > rounds:
                    self._drop(t)
                else:
                    side = self.read(f"checkpoints/{t:06d}.json") or {"files": []}
                    self.kept[t] = frozenset(side["files"])
            needed = frozenset().union(*self.kept.values())
            for folder in FOLDERS:
                for file in (self.path / folder).glob("*.safetensors"):
                    if f"{folder}/{file.name}" not in needed:
                        file.unlink()

    def _rounds(self) -> list[int]:
        return sorted(int(f.stem) for f in (self.path / CHECKPOINTS).glob("[0-9]*.safetensors"))

    def _file(self, rounds: int) -> Path:
        return self.path / CHECKPOINTS / f"{rounds:06d}.safetensors"


def _begun(path: Path) -> bool:
    """Was a round of the run in this folder done, or the state after one kept?"""
    metrics = path / METRICS
    return (metrics.exists() and metrics.stat().st_size > 0) or any((path / CHECKPOINTS).glob("[0-9]*"))


class _Writing:
    """Turns a full disk or a forbidden folder into one line that says what is still there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise RunError(
                f"{self.path}: cannot write ({error.strerror or error}); what was written before is whole, "
                f"`fedstill resume {self.path}` goes on from there"
            ) from error


def versions() -> dict[str, Any]:
    """What decides bits besides the experiment: versions and the machine."""
    found = {}
    for name in ("fedstill", "torch", "numpy", "scikit-learn", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return {
        **found,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()} {'-'.join(platform.libc_ver())}",
        "cores": os.cpu_count(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "threads_per_worker": 1,
        "commit": commit(),
    }


@cache
def commit() -> str:
    """The commit of the code that runs, with `+` where its files were changed since; empty outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "."], cwd=here.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip()[:12] + ("+" if changed.stdout.strip() else "")


def processor() -> str:
    """Maker, family and model: processors of one capability may still sum in another order."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        known.setdefault(name.strip(), value.strip())
    parts = [known[name] for name in ("vendor_id", "cpu family", "model") if name in known]
    return " ".join(parts) or platform.processor() or platform.machine()
