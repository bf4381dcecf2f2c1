"""What is kept, and for how long: copies of a hub's folder, and the end of old runs."""

import contextlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fedstill.core.errors import UsageError
from fedstill.flower.audit import AuditLog
from fedstill.flower.runbook import DAY

DATABASE = "hub.db"
LEFT_OUT = {"flwr", ".answers", f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal"}
"""What a hub makes anew."""


def backup(home: Path, target: Path) -> int:
    """Copy a hub's folder (it may be running) into one tar file for its owner alone; its size in bytes.

    The database is copied by SQLite itself, as of one moment. Untarred into an empty folder, it is a hub's `--state`.
    """
    if not (home / "token").exists():
        raise UsageError(f"--backup: {home} is no hub's folder")
    if target.exists():
        raise UsageError(f"--backup {target}: exists already, and is not written over")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / DATABASE
        if (home / DATABASE).exists():
            with closing(sqlite3.connect(home / DATABASE)) as old, closing(sqlite3.connect(copy)) as new:
                old.backup(new)
        file = os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        with file, tarfile.open(fileobj=file, mode="w") as tar:
            pack(tar, home, "", lambda name: not {DATABASE, *LEFT_OUT}.isdisjoint(name.split("/")))
            if copy.exists():
                tar.add(copy, DATABASE)
    return target.stat().st_size


def pack(tar: tarfile.TarFile, folder: Path, name: str, left_out: Callable[[str], bool]) -> None:
    """Add a folder that is written to meanwhile under this name; what is gone when its turn comes is left out."""
    for path in [folder, *sorted(folder.rglob("*"))]:
        inside = f"{name}/{path.relative_to(folder)}".removesuffix("/.").removeprefix("/")
        if not inside or left_out(f"/{inside}"):
            continue
        with contextlib.suppress(FileNotFoundError):
            if not path.is_file():
                tar.add(path, inside, recursive=False)
                continue
            with path.open("rb") as file:  # opened first: another may take its name, of another size
                tar.addfile(tar.gettarinfo(arcname=inside, fileobj=file), file)


def forget(runs: Path, days: float, audit: AuditLog) -> list[str]:
    """Delete the folders of runs in which nothing was written for so many days; their names."""
    gone = []
    for folder in sorted(path for path in runs.glob("*") if path.is_dir() and not path.name.startswith(".")):
        with contextlib.suppress(OSError):  # it is being written to, or cannot be deleted: tomorrow again
            newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if newest < time.time() - days * DAY:
                shutil.rmtree(folder)
                audit.write("run forgotten", run=folder.name, days=days)
                gone.append(folder.name)
    return gone


def keep(runs: Path, days: float | None, audit: AuditLog, report: Callable[[str], None]) -> None:
    """Forget old runs now and every day, in a thread of its own; for ever kept where `days` is None."""
    if days is None:
        return

    def daily() -> None:
        while True:
            for run in forget(runs, days, audit):
                report(f"run {run}: nothing was written for {days:g} days; deleted (--keep-days)")
            time.sleep(DAY)

    threading.Thread(target=daily, daemon=True).start()


def shrunk(database: Path) -> None:
    """Give back the space of what was deleted from a database that nobody uses now."""
    if database.exists():
        with closing(sqlite3.connect(database)) as line:
            line.execute("VACUUM")
