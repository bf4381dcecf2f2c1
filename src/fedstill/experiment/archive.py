"""The archive: a folder of records, one `.jsonl` file for each paper.

A run adds a line and changes none. By hand four things were done: where a setting came later whose default does
something new, the records of before were given the value with which they had run; fingerprints were computed anew when
their form changed; records of a form that no setting makes any more were taken out, and so were the leaderboard's of
rates that were tuned anew.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstill.core.errors import RunError, UsageError, unknown
from fedstill.experiment.config import Experiment
from fedstill.experiment.lock import writing
from fedstill.experiment.records import Record, question

PATIENCE = 60.0
"""So many seconds a record waits for another that is being added to the same folder."""


class Archive:
    """A folder of records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: list[Record] | None = None
        self._known: dict[bytes, Record] = {}  # by their lines: what is read again is not parsed again

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def records(self) -> list[Record]:
        """All records, as they were added; of two with the same id the later one counts."""
        if self._read is None:
            files = sorted(self.folder.glob("*.jsonl"))
            self._read = list({record.id: record for file in files for record in self._lines(file)}.values())
        return self._read

    @cached_property
    def _by_question(self) -> dict[str, list[Record]]:
        answers: dict[str, list[Record]] = {}
        for record in self.records:
            if record.question is not None:
                answers.setdefault(record.question, []).append(record)
        return answers

    def find(self, plan: Experiment) -> Record | None:
        """The record of a run that contains this one: the same settings, as many rounds or more.

        The longest such, so that tables of different lengths show one run: two of one plan differ where they were made
        on different kinds of processors.
        """
        fit = [
            record
            for record in self._by_question.get(question(plan), [])
            if int(record.experiment["rounds"]) >= plan.rounds
            and plan.rounds in record.rounds
            and all(any(metric in known for known in record.curves.values()) for metric in plan.metrics)
        ]
        return max(fit, key=lambda record: int(record.experiment["rounds"]), default=None)

    def by_id(self, start: str) -> Record:
        """The record whose id starts so."""
        fit = [record for record in self.records if record.id.startswith(start)]
        if len(fit) == 1:
            return fit[0]
        if fit:
            raise UsageError(f"{start}: {len(fit)} records start so: {', '.join(r.id for r in fit[:6])}")
        raise UsageError(
            f"unknown record {start!r}: no id of the {len(self.records):,} records in {self.folder} starts so "
            "(fedstill results lists them)"
        )

    def again(self) -> "Archive":
        """The archive as it is by now: others may have added records to its folder."""
        self._read = None
        self.__dict__.pop("_by_question", None)
        return self

    def add(self, record: Record) -> Path:
        """Add a record at the end of its paper's file, whole or not at all; returns the file.

        What is there already is not added twice. One writer at a time: between reading where the last whole line ends
        and cutting there, a second could add a line that would be lost.
        """
        preset = record.cell.partition(" · ")[0]
        file = self.folder / f"{preset.partition('/')[0] or 'own'}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with writing(self.folder, wait=PATIENCE), file.open("ab") as end:
                known = self.again().records
                self._refuse_other_data(record, known)
                if not any(_same(record, there) for there in known):
                    end.write(_ending(end, file.read_bytes()) + record.line().encode())
                    end.flush()
                    os.fsync(end.fileno())
        except OSError as error:
            raise RunError(f"{file}: cannot write ({error.strerror or error})") from error
        self.again()
        return file

    def _refuse_other_data(self, record: Record, known: Sequence[Record]) -> None:
        """Tables take records whose data are named alike for runs on the same data: all of them have to be."""
        for there in known:
            if there.data_named == record.data_named and there.data != record.data:
                raise UsageError(
                    f"{record.id}: the record {there.id} in {self.folder} names its data alike and had other data "
                    f"({there.data}, not {record.data}); give this one a folder of its own (--results)"
                )

    def _lines(self, file: Path) -> Iterator[Record]:
        """The records of a file; blank lines are passed over, as is a last one that a crash cut off."""
        lines = file.read_bytes().split(b"\n")  # a line may end inside a character
        for number, line in enumerate(lines, 1):
            if not line.strip() or (number == len(lines) and not _whole(line)):
                continue
            try:
                if line not in self._known:
                    entry = json.loads(line)
                    self._known[line] = Record(**{field.name: entry[field.name] for field in fields(Record)})
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{file}, line {number}: not a record ({type(error).__name__}: {error})") from None
            yield self._known[line]


def _same(one: Record, other: Record) -> bool:
    """Do both say the same of the same run, for the same cell?"""
    return (one.id, one.cell, one.bits, one.weights) == (other.id, other.cell, other.bits, other.weights)


def _whole(line: bytes) -> bool:
    """Is a line without an end all there? One that a crash cut off is no JSON.

    >>> _whole(b'{"id": 1}'), _whole(b'{"id": 1'), _whole(b"")
    (True, False, False)
    """
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _ending(file: Any, written: bytes) -> bytes:
    """What is missing at the end of a file: of a whole line its end; a line cut off by a crash makes room."""
    start = written.rfind(b"\n") + 1
    if _whole(written[start:]):
        return b"\n"
    file.truncate(start)
    return b""


Filter = Callable[[Record], bool]
ITS_OWN: Mapping[str, Callable[[Record], Any]] = {
    "id": lambda record: record.id,
    "cell": lambda record: record.cell,
    "commit": lambda record: record.commit,
    "data_fingerprint": lambda record: record.data,
    "method": lambda record: record.experiment["method"]["name"],
    "alpha": lambda record: record.experiment.get("partition", {}).get("alpha"),
}
"""What a record is found by besides its settings."""


def fitting(records: Sequence[Record], wanted: Sequence[str]) -> list[Record]:
    """The records that fit (`matching`); a setting that neither they nor an experiment have is an error."""
    fits = matching(wanted)
    known = {*ITS_OWN, *(field.name for field in fields(Experiment)), *_settings_of(records)} if wanted else set()
    for name, _ in _pairs(wanted):
        if name not in known:
            raise unknown("setting", name, known)
    return [record for record in records if fits(record)]


def matching(wanted: Sequence[str]) -> Filter:
    """A filter from `name=value` pairs over settings (`seed=1`, `method=fedkf`, `tag=final`, `cell=*V*`)."""
    pairs = _pairs(wanted)

    def fits(record: Record) -> bool:
        return all(any(_is(item, value) for item in _items(record, name)) for name, value in pairs)

    return fits


def _pairs(wanted: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in wanted:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r}: must be name=value, like method=fedkf")
        pairs.append((name, value))
    return pairs


def _is(item: Any, wanted: str) -> bool:
    """Is this the wanted value, * and ? allowed? Numbers are compared as such.

    >>> _is(1.0, "1"), _is("fedkf", "fed*"), _is(None, "None"), _is(0.1, "1")
    (True, True, True, False)
    """
    if fnmatchcase(str(item), wanted):
        return True
    try:
        return isinstance(item, int | float) and float(wanted) == item
    except ValueError:
        return False


def _items(record: Record, name: str) -> list[Any]:
    """A setting's value; each item of a list, such as the tags, by itself."""
    value = _setting(record, name)
    return value if isinstance(value, list) else [value]


def _setting(record: Record, name: str) -> Any:
    if name in ITS_OWN:
        return ITS_OWN[name](record)
    here: Any = record.experiment
    for step in name.split("."):
        if not isinstance(here, Mapping) or step not in here:
            return record.experiment["method"].get(name)
        here = here[step]
    return here


def _settings_of(records: Sequence[Record]) -> set[str]:
    """Every name that `_setting` finds in one of the records: `seed`, `partition.alpha`, of the method also `lr`."""
    return {name for record in records for name in (*_paths(record.experiment), *record.experiment["method"])}


def _paths(settings: Mapping[str, Any]) -> Iterator[str]:
    """The names of settings, those inside others behind a point.

    >>> list(_paths({"seed": 1, "method": {"name": "fedavg"}}))
    ['seed', 'method', 'method.name']
    """
    for name, value in settings.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _paths(value))
