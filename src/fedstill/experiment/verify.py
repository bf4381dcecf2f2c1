"""Running a record again: are the data, the split, the scores and the weights the same, bit by bit?"""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.value import by_field
from fedstill.experiment.centralised import student_record, teacher_plan
from fedstill.experiment.records import Record, made_by, record_of
from fedstill.experiment.run import start

PARTS = {"data": "the data", "split": "the split", "bits": "every score", "weights": "the last weights"}
DECIDES = ("torch", "numpy", "scikit-learn", "cpu", "processor")
"""The versions that decide bits besides the code."""


@dataclass(frozen=True)
class Check:
    """A record, and what a second run of it gave."""

    record: Record
    parts: Mapping[str, bool]
    """What was compared, and whether it was the same."""
    elsewhere: Mapping[str, tuple[Any, Any]]
    """Versions or parts of the machine that differ: then and now."""

    @property
    def same(self) -> bool:
        """Was everything the same?"""
        return all(self.parts.values())

    @property
    def outcome(self) -> str:
        """In words; scores can agree to the bit where the weights, rounded otherwise, do not."""
        if self.same:
            return "the same bits"
        differ = {part for part, same in self.parts.items() if not same}
        return "the same scores, other bits of the weights" if differ == {PARTS["weights"]} else "NOT the same"

    def plain(self) -> dict[str, Any]:
        """The check as JSON."""
        return {**{k: v for k, v in asdict(self).items() if k != "record"}, "id": self.record.id, "same": self.same}


def verified(record: Record, rounds: int | None = None) -> Check:
    """Run the record's experiment again, in a folder that is thrown away.

    Of its first `rounds` alone, or of as many of them as end with an examined one, the curves are compared.
    """
    plan = record.plan
    if plan is None:
        raise UsageError(f"{record.id}: its settings cannot be read by this version; it was {made_by(record)}")
    student = "student" in record.curves
    if rounds and student:
        raise UsageError(f"{record.id}: a student is taught by a finished teacher; verify it without --rounds")
    plan = replace(plan, fingerprint=None)  # other data are found out below, and named
    short = plan.rounds
    if rounds and rounds < plan.rounds:
        examined = [t for t in record.rounds if t <= rounds]
        if not examined:
            raise UsageError(f"rounds = {rounds}: {record.id} was first examined in round {record.rounds[0]}")
        short = examined[-1]
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "again"
        run = teacher_plan(plan) if student else plan
        start(replace(run, rounds=short), out=path.parent, name=path.name)
        again = student_record(plan, path) if student else record_of(path)
    names = ("data", "split") if short < plan.rounds else tuple(PARTS)
    before, after = by_field(record), by_field(again)
    parts = {PARTS[name]: before[name] == after[name] for name in names}
    if short < plan.rounds:
        parts[f"the curves to round {short}"] = _shared(record, again)
    then, now = record.versions, again.versions
    return Check(
        record, parts, {key: (then.get(key), now.get(key)) for key in DECIDES if then.get(key) != now.get(key)}
    )


def _shared(record: Record, again: Record) -> bool:
    """Do both say the same in every round that both examined, and is there one?"""
    both = [t for t in again.rounds if t in record.rounds]
    places = [(list(record.rounds).index(t), list(again.rounds).index(t)) for t in both]
    return bool(both) and all(
        record.curves[model][metric][then] == curve[now]
        for model, known in again.curves.items()
        for metric, curve in known.items()
        if metric in record.curves.get(model, {})  # another version reports more
        for then, now in places
    )
