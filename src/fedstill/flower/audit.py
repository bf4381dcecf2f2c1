"""An audit log: lines of JSON, only ever appended, each holding the hash of the one before.

Whoever changes, removes or reorders a line breaks the chain from there on, and `fedstill log verify` says where. That
the end was cut off cannot be seen from the file alone: note the last hash elsewhere from time to time.
"""

import fcntl
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.core.errors import DataError, UsageError

BEGINNING = "0" * 64
BURST = 20
"""Refusals of a minute that are all entered."""


@dataclass(frozen=True)
class Verified:
    """A log that holds: how many entries it has, the hash of the last, and the lines that a crash cut off."""

    lines: int
    last: str
    cut: tuple[int, ...] = ()


class AuditLog:
    """Appends events to a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.recent: deque[float] = deque(maxlen=BURST)
        self.left_out = 0

    def write(self, event: str, **facts: Any) -> None:
        """Append an event with its facts (plain values) and the time."""
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            entry = {"time": round(time.time(), 3), "event": event, **facts, "before": _last_hash(file)}
            line = json.dumps({**entry, "hash": _hash(entry)}, sort_keys=True).encode() + b"\n"
            file.seek(0, os.SEEK_END)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def refusal(self, **facts: Any) -> None:
        """Append a refusal; past `BURST` in a minute only one a second, so that strangers cannot fill a disk."""
        now = time.monotonic()
        if len(self.recent) == BURST and self.recent[0] > now - 60 and self.recent[-1] > now - 1:
            self.left_out += 1
            return
        more = {"left_out": self.left_out} if self.left_out else {}
        self.recent.append(now)
        self.left_out = 0
        self.write("refused", **facts, **more)


def verify(path: Path) -> Verified:
    """Check every line of a log against the one before; raises `DataError` naming the first that does not hold.

    A line that is no entry was cut off by a crash if the log goes on after it from the entry before.
    """
    before, count, cut, number = BEGINNING, 0, [], 0
    for number, entry in _lines(path):
        if entry is None:
            cut.append(number)
            continue
        claimed = entry.pop("hash", None)
        if entry.get("before") != before or claimed != _hash(entry):
            raise DataError(f"{path}: line {number} was changed, or lines before it are missing")
        before, count = str(claimed), count + 1
    if cut and cut[-1] == number:
        raise DataError(f"{path}: line {number} is no entry of a log")
    return Verified(count, before, tuple(cut))


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The log's entries, one a line; lines that are none are left out."""
    return (entry for _, entry in _lines(path) if entry is not None)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines' numbers and entries, None where a line is no entry."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    entry = None
                yield number, entry if isinstance(entry, dict) else None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _hash(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _last_hash(file: Any) -> str:
    """The hash in the last line; a line that was cut off by a crash is closed and stays as it is."""
    size, read = file.seek(0, os.SEEK_END), 1 << 16
    while True:
        file.seek(max(0, size - read))
        tail = file.read()
        found = next(filter(None, map(_hash_in, reversed(tail.splitlines()))), None)
        if found is not None or read >= size:
            break
        read *= 8  # a line longer than that
    if tail and not tail.endswith(b"\n"):
        file.write(b"\n")
    return found or BEGINNING


def _hash_in(line: bytes) -> str | None:
    """The hash in a whole line."""
    try:
        return str(json.loads(line)["hash"])
    except (ValueError, KeyError, TypeError):
        return None
