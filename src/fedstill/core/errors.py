"""What the package raises when the user, not the code, has to act."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class FedstillError(Exception):
    """A problem the user can mend; its text is one line: the value, where, and what is allowed."""


class UsageError(FedstillError):
    """A wrong setting: caught before anything ran."""


class DataError(FedstillError):
    """Data that are missing, damaged or of the wrong form."""


class RunError(FedstillError):
    """A run that could not go on; what it had written is still there."""


class Abstains(FedstillError):
    """A client that does not answer in this round, for a reason of its own; the round goes on without it."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Around imports of what the package's extra `name` brings: where one fails, `what` is said to need it."""
    try:
        yield
    except ImportError:
        raise UsageError(f"{what}: needs an extra: pip install 'fedstill[{name}]'") from None


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name nobody registered: it lists the known ones, the nearest first."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return UsageError(f"unknown {kind} {str(name)!r}{hint} known: {', '.join(names) or 'none'}")
