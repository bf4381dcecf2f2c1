"""What travels between hub and sites: letters, all of them records.

The hub writes `Enrol`, `Task` and `ExamRequest`; a site answers with `Enrolled`, `Work`, `Marks`, or a `Refusal` that
says why not. Every answer names its run, round and site, so that one to another letter is never taken for it.
"""

import re
from collections.abc import Mapping
from typing import Any

from fedstill.core import record
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.record import State

FORMAT = 1


@record.record
class Enrol:
    """Who are you? `experiment` is JSON; the site refuses a format it does not know."""

    run: str
    format: int
    experiment: str


@record.record
class Enrolled:
    """A site introduces itself: its name, its model, and its data in a few numbers (`summary` is JSON)."""

    run: str
    site: str
    samples: int
    tests: int
    model: str
    summary: str
    public: str
    """A checksum of the public set, for methods that need one."""


@record.record
class Task:
    """A client's turn: all a site needs, even if it was started again; the method's download is attached."""

    run: str
    round: int
    client: int
    setting: str
    kept: int
    """A round the hub will not go back behind: what a site kept from before is no longer needed."""


@record.record
class Work:
    """The upload of a turn, and how long it took."""

    run: str
    round: int
    client: int
    site: str
    seconds: float
    upload: Any


@record.record
class ExamRequest:
    """The models attached are to be tested on the site's local test."""

    run: str
    round: int
    client: int
    setting: str


@record.record
class Models:
    """What is attached to an exam: weights by the models' names."""

    weights: Mapping[str, State]


@record.record
class Marks:
    """How many of its test samples each model got right; `own` is the site's own model's, where it has one.

    `classes` counts right answers per class and model, and the test samples per class, when the experiment asks.
    """

    run: str
    round: int
    client: int
    site: str
    total: int
    right: Mapping[str, int]
    own: int | None
    classes: Mapping[str, tuple[int, ...]]


@record.record
class Refusal:
    """Why a site did not do what it was asked."""

    run: str
    site: str
    why: str


def checked_name(kind: str, name: str) -> str:
    """A run's or site's name, fit to be a file's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name):
        raise UsageError(f"{kind} {name!r}: must be up to 80 letters, digits, dots, dashes and underscores")
    return name


def opened(data: bytes, *kinds: type) -> Any:
    """The letter in these bytes, of one of the kinds expected."""
    letter = record.loads(data)
    if not isinstance(letter, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise FedstillError(f"a {type(letter).__name__} where a letter of kind {names} was expected")
    return letter
