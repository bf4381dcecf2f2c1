"""Files for their owner alone."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedstill.core.errors import RunError
from fedstill.flower.messages import readable


def private_folder(path: Path) -> Path:
    """A folder for its owner alone; whatever this process writes from now on is for its owner alone too."""
    os.umask(0o077)
    home = path.expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    return home


@contextmanager
def whole(file: Path) -> Iterator[None]:
    """Read a file of a hub's own inside: where it is not what the hub wrote, that is said in one line."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{file.name}: damaged ({readable(repr(error))}); bring it back from a copy") from None


def warn_if_readable(key: Path) -> None:
    """Say so when others on this machine can read a private key."""
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        print(f"warning: {key} can be read by others; chmod 600 {key}", file=sys.stderr, flush=True)
