"""One writer a folder: whoever writes there holds its lock, and says who it is.

The lock is the operating system's, on the file `.lock`: it ends with its process, however that ends, so a run that was
killed is never taken for one that goes on. The words in the file are for people. Processes forked meanwhile let go of
it, lest a worker that outlives its parent for a moment keep the folder.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedstill.core.errors import RunError, UsageError

try:
    import fcntl
except ImportError:  # not on this system: nothing is locked, and the user has to take care
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
LOCKS = fcntl is not None
_held: set[int] = set()


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True)
class Writer:
    """Who writes in a folder."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def writing(folder: Path, wait: float = 1.0) -> Iterator[None]:
    """Be the only writer in `folder`; who comes second is refused after `wait` seconds, and told who has it."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + wait
        while not _taken(handle):
            if time.monotonic() > until:
                raise UsageError(f"{folder}: {writer(folder) or 'another process'} is writing there; wait, or stop it")
            time.sleep(0.1)
        _sign(handle, folder)
        _held.add(handle)
        yield
    finally:
        if handle in _held:  # nobody's any more
            os.truncate(handle, 0)
            _held.discard(handle)
        os.close(handle)


def _sign(handle: int, folder: Path) -> None:
    """Write into the lock who has it; where the disk is full, this is the first that finds out."""
    me = Writer(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(me)).encode(), 0)
    except OSError as error:
        raise RunError(f"{folder / NAME}: cannot write ({error.strerror or error})") from error


def writer(folder: Path) -> Writer | None:
    """Who writes in this folder now; None when nobody does."""
    if fcntl is None:
        return None
    try:
        handle = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        if _taken(handle, shared=True):
            return None
        return Writer(**json.loads(os.pread(handle, 4096, 0)))
    except (ValueError, TypeError):  # it is just being written
        return Writer(0, "this machine", "now")
    finally:
        os.close(handle)


def _taken(handle: int, shared: bool = False) -> bool:
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
