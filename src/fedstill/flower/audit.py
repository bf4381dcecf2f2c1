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
    """A log that holds: how many lines it has, and the hash of the last."""

    lines: int
    last: str


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
    """Check every line of a log against the one before; raises `DataError` naming the first that does not hold."""
    before, number = BEGINNING, 0
    for number, entry in enumerate(entries(path), 1):
        claimed = entry.pop("hash", None)
        if entry.get("before") != before or claimed != _hash(entry):
            raise DataError(f"{path}: line {number} was changed, or lines before it are missing")
        before = str(claimed)
    return Verified(number, before)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The log's entries, one a line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = json.loads(line)
                except ValueError:
                    entry = None
                if not isinstance(entry, dict):
                    raise DataError(f"{path}: line {number} is no entry of a log")
                yield entry
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _hash(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _last_hash(file: Any) -> str:
    """The hash in the last line; a line that was cut off by a crash is closed and stays as it is."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return BEGINNING
    file.seek(max(0, size - (1 << 16)))
    tail = file.read()
    if not tail.endswith(b"\n"):
        file.write(b"\n")
    lines = tail.splitlines()
    for line in reversed(lines):
        try:
            return str(json.loads(line)["hash"])
        except (ValueError, KeyError, TypeError):
            continue
    return BEGINNING
