"""What travels between hub and sites, and the door that everything passes on both sides.

A message is a head and, where it carries tensors, a body. The head is JSON, one of the types below: every field is
typed and bounded, nothing else is let in. The body is the bytes of a record (a download, an upload, models to be
examined). The hub writes `Enrol`, `Task` and `ExamRequest`; a site answers with `Enrolled`, `Work`, `Marks`, or a
`Refusal` that says why not. Where only sums may be seen, `KeysAsked`, `SharesAsked` and `UnmaskAsked` come around a
`MaskedTask`. Every answer names its run, round and site, so that one to another question is never taken for it.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from fedstill.core import record
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.record import State

FORMAT = 4
"""Of messages; a site refuses a hub of another one."""
LARGEST_HEAD = 4 << 20
"""Bytes of a head: a setting with ten thousand classes and as many sites is smaller."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"

Name = Annotated[str, StringConstraints(pattern=NAME)]
RunId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""Drawn by the hub when a run is first started, so that nobody can guess it."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,120}$")]
Label = Annotated[str, StringConstraints(min_length=0, max_length=120)]
Hex = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){16,128}$")]
"""A key, a share or a sealed letter."""
Signature = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){0,128}$")]
"""Of a site; none where it has no key."""
Line = Annotated[str, StringConstraints(max_length=400)]
Text = Annotated[str, StringConstraints(max_length=LARGEST_HEAD)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Round = Annotated[int, Field(ge=0, le=10**7)]
Client = Annotated[int, Field(ge=0, le=10**6)]
Seconds = Annotated[float, Field(ge=0, le=10**7)]
Level = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A pixel's or a column's value, or a mean or deviation of such: squares of them are finite. See `caps.far_ones`."""
LARGEST_SAMPLE = 1 << 26
"""Numbers in one sample."""
MOST_CLASSES = 10_000
Plain = bool | Annotated[int, Field(ge=-(10**9), le=10**9)] | Level | Label | None
_T = TypeVar("_T")
Many = Annotated[tuple[_T, ...], Field(max_length=10_000)]


class _Head(BaseModel):
    """Base of all heads: immutable, strictly typed, no field more and none less."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def dumps(self) -> bytes:
        """The head as JSON."""
        return self.model_dump_json().encode()


class _OfRun(_Head):
    """Base of what belongs to a run: its name, and what tells it from another run of that name."""

    kind: str
    run: Name
    run_id: RunId


class _OfRound(_OfRun):
    """Base of what belongs to one client in one round."""

    round: Round
    client: Client


class RoundQuestion(_OfRound):
    """Base of what a client is asked in a round; `setting` says all a site needs, even if it was started again."""

    setting: Text
    deadline: Seconds
    """Seconds after which nobody waits for the answer any more."""


class RoundAnswer(_OfRound):
    """Base of what a client answers in a round: it names its question, and who answers."""

    site: Name


class Enrol(_OfRun):
    """Who are you? `experiment` is the plan as JSON."""

    kind: Literal["enrol"] = "enrol"
    format: Annotated[int, Field(ge=0, le=1000)]
    experiment: Text
    signature: Annotated[str, StringConstraints(max_length=200)]
    """Of the person who started it, where the hub was given one (base64)."""


class DataSummary(_Head):
    """A site's training samples in a few numbers; see `data.summary.Summary`, field by field."""

    size: Count
    kind: Annotated[dict[Label, Plain | Many[Plain] | Many[Many[Plain]]], Field(max_length=50)]
    dtype: Literal["uint8", "float32", "int32"]
    measured_mean: Many[Level]
    measured_std: Many[Level]
    counts: Many[Count]
    lowest: Level
    class_names: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MOST_CLASSES)]

    @model_validator(mode="after")
    def sound(self) -> "DataSummary":
        """The kind is one of fedstill's, class names differ, class numbers are no higher than there may be classes."""
        if (wrong := plain_names(self.kind)) is not None:
            raise ValueError(wrong)
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError("class names must differ")
        if any(name.isdecimal() and (len(name) > 5 or int(name) >= MOST_CLASSES) for name in self.class_names):
            raise ValueError(f"a class's number must be below {MOST_CLASSES}")
        return self


def plain_names(kind: Mapping[str, object]) -> str | None:
    """Why a kind is not taken from a stranger: it must be called by a plain name, never by where code stands."""
    name = kind.get("name")
    return None if isinstance(name, str) and re.fullmatch("[a-z0-9_-]{1,40}", name) else "a kind without a plain name"


class Enrolled(_OfRun):
    """A site introduces itself: its name, its model, its data in a few numbers, and what it knows of this run."""

    kind: Literal["enrolled"] = "enrolled"
    site: Name
    samples: Annotated[int, Field(ge=1, le=10**9)]
    tests: Count
    model: ModelName
    summary: DataSummary
    public: Digest
    """A checksum of the public set, for methods that need one."""
    data: Digest
    """A checksum of the site's own data under a secret of the site: it tells the hub only whether they changed."""
    turns: Round
    """How many turns of this run the site remembers."""

    @model_validator(mode="after")
    def sound(self) -> "Enrolled":
        """The training samples are a part of the samples summed up."""
        if self.samples > self.summary.size:
            raise ValueError(f"samples = {self.samples}: more than the {self.summary.size} summed up")
        return self


class Task(RoundQuestion):
    """A client's turn; the body is the method's download."""

    kind: Literal["task"] = "task"
    kept: Round
    """A round the hub will not go back behind: what a site kept from before is no longer needed."""


class Work(RoundAnswer):
    """What a turn took; the body is the upload."""

    kind: Literal["work"] = "work"
    seconds: Seconds


class KeysAsked(RoundQuestion):
    """Secure sums, phase 0: a round begins, which public keys has the site in it?"""

    kind: Literal["keys"] = "keys"


class KeysGiven(RoundAnswer):
    """A site's public keys for one round: for masks, and for sealed letters."""

    kind: Literal["keys given"] = "keys given"
    masking: Hex
    sealing: Hex
    signature: Signature
    """By which other sites can tell that the hub passed these keys on as they are."""


class SharesAsked(RoundQuestion):
    """Secure sums, phase 1: everybody's keys, signed; which shares of its secrets does the site give to whom?"""

    kind: Literal["shares"] = "shares"
    keys: Many[tuple[Client, Hex, Hex, Signature]]


class SharesGiven(RoundAnswer):
    """By receiver, a site's sealed letters."""

    kind: Literal["shares given"] = "shares given"
    letters: Many[tuple[Client, Hex]]


class MaskedTask(Task):
    """Secure sums, phase 2: a turn whose upload is to be masked; by sender, the sealed letters for this site."""

    kind: Literal["masked"] = "masked"  # type: ignore[assignment]
    letters: Many[tuple[Client, Hex]]


class UnmaskAsked(RoundQuestion):
    """Secure sums, phase 3: whose vectors arrived; of these the shares of seeds are wanted, of the others of keys."""

    kind: Literal["unmask"] = "unmask"
    arrived: Many[Client]
    kept: Round


class UnmaskGiven(RoundAnswer):
    """By owner, its share's number and bytes: of seeds, and of the keys of those who were lost."""

    kind: Literal["unmask given"] = "unmask given"
    seeds: Many[tuple[Client, Count, Hex]]
    masks: Many[tuple[Client, Count, Hex]]


class ExamRequest(RoundQuestion):
    """The models in the body are to be tested on the site's local test."""

    kind: Literal["exam"] = "exam"


class Marks(RoundAnswer):
    """How many of its test samples each model got right; `own` is the site's own model's, where it has one.

    `classes` counts right answers per class and model, and under the empty name the test samples per class, when the
    experiment asks.
    """

    kind: Literal["marks"] = "marks"
    total: Count
    right: Annotated[dict[Label, Count], Field(max_length=1000)]
    own: Count | None
    classes: Annotated[
        dict[Label, Annotated[tuple[Count, ...], Field(max_length=MOST_CLASSES)]], Field(max_length=1000)
    ]

    @model_validator(mode="after")
    def sound(self) -> "Marks":
        """Nobody gets more right than there are samples, nor more of a class than it has."""
        counts = [*self.right.values(), *([] if self.own is None else [self.own]), *map(sum, self.classes.values())]
        if any(count > self.total for count in counts):
            raise ValueError(f"more right answers than the {self.total} there are")
        there = self.classes.get("")
        if self.classes and (there is None or any(len(hits) != len(there) for hits in self.classes.values())):
            raise ValueError("counts per class must be as many as there are classes")
        if there is not None and any(h > n for hits in self.classes.values() for h, n in zip(hits, there, strict=True)):
            raise ValueError("more right answers of a class than it has samples")
        return self


class Refusal(_Head):
    """Why a site did not do what it was asked."""

    kind: Literal["refusal"] = "refusal"
    run: Annotated[str, StringConstraints(max_length=80)]
    site: Name
    why: Line


@record.record
class Models:
    """The body of an exam: weights by the models' names, and whose network a model has if not the server's."""

    weights: Mapping[str, State]
    architectures: Mapping[str, int] = field(default_factory=dict)


SumQuestion = KeysAsked | SharesAsked | UnmaskAsked
SumAnswer = KeysGiven | SharesGiven | UnmaskGiven
Question = Enrol | Task | MaskedTask | ExamRequest | SumQuestion
Answer = Enrolled | Work | Marks | SumAnswer | Refusal
_questions: TypeAdapter[Question] = TypeAdapter(Annotated[Question, Field(discriminator="kind")])
_answers: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def question(head: bytes) -> Question:
    """The question in these bytes, at a site's door."""
    return _read(_questions, head)


def answer(head: bytes) -> Answer:
    """The answer in these bytes, at the hub's door."""
    return _read(_answers, head)


def _read(kinds: TypeAdapter[_T], head: bytes) -> _T:
    if len(head) > LARGEST_HEAD:
        raise FedstillError(f"a head of {len(head)} bytes: at most {LARGEST_HEAD} are read")
    try:
        return kinds.validate_json(head)
    except ValidationError as error:
        where, why = first_fault(error)
        raise FedstillError(readable(f"{where or 'message'}: {why}")) from None


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Where the first fault of a message or setting is, by the names on the way to it, and what it is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]


def readable(text: str, most: int = 300) -> str:
    """A stranger's words as one short line: no line breaks, no control characters, nothing a terminal obeys.

    >>> readable("a\\x1b[31mb\\nc")
    'a?[31mb?c'
    """
    line = "".join(character if character.isprintable() else "?" for character in text)
    return line if len(line) <= most else line[: most - 1] + "…"


def checked_name(kind: str, name: str) -> str:
    """A run's or site's name, fit to be a file's name."""
    if not re.fullmatch(NAME, name):
        raise UsageError(f"{kind} {name!r}: must be up to 80 letters, digits, dots, dashes and underscores")
    return name
