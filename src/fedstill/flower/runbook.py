"""What a site remembers of a run: which experiment it agreed to, how much it has done, its client's states."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedstill.core import record
from fedstill.core.errors import FedstillError
from fedstill.experiment.config import identity
from fedstill.experiment.setting import Setting
from fedstill.flower.messages import readable
from fedstill.flower.policy import Policy

DAY = 86400.0
ANEW = 100
"""Enrolments of a run beside those that go with its turns."""
DERIVED = ("clients", "active")


@dataclass(frozen=True)
class RunBook:
    """A site's book of a run; every turn and exam is entered before it begins."""

    run_id: str
    experiment: str
    """The digest of what was agreed to at enrolment."""
    setting: str = ""
    """The digest of the rest of the setting, fixed by the first task or exam."""
    turns: int = 0
    """The number of the round after the last one taken part in."""
    taken: int = 0
    """Turns begun, repeated ones too."""
    exams: int = 0
    exam_round: int = -1
    exams_in_round: int = 0
    seconds: float = 0.0
    """Of work; what a turn may take is entered when it begins, so that one which is ended counts as well."""
    bytes: int = 0
    begun: float = 0.0
    """When the run was enrolled for (seconds since 1970)."""
    rounds: int = 0
    """How many rounds the run has, by what was said at the last enrolment."""
    active: int = 0
    """Of how many sites a round is at least, by what was said at an enrolment."""
    asked: int = 0
    """Enrolments, and questions of secure sums."""

    def enrolled(self, policy: Policy, rounds: int, active: int) -> "RunBook":
        """The book with one more enrolment: for so many rounds of so many sites, or more."""
        return replace(self.with_question(policy), rounds=rounds, active=max(active, self.active))

    def with_question(self, policy: Policy) -> "RunBook":
        """The book with one more question that is neither turn nor exam: a turn has three, and runs begin anew."""
        if self.asked >= 4 * policy.turns_per_run + ANEW:
            raise FedstillError(f"{self.asked} questions in this run: this site's policy allows no more")
        return replace(self, asked=self.asked + 1)

    def in_round(self, round: int) -> None:
        """Refuse a round that the run has not, by what the site was told when it enrolled."""
        if round >= self.rounds:
            raise FedstillError(f"round {round + 1}: this site enrolled for {self.rounds} rounds")

    def with_setting(self, setting: Setting, active: int) -> "RunBook":
        """The book with this setting agreed to, of rounds with `active` sites; refused where it is another than before.

        Who is in a round is fixed as well: how many of them must stay for a sum to be unmasked follows from it.
        """
        if digest(agreed_part(setting.experiment)) != self.experiment:
            raise FedstillError("a task of another experiment than the one this site enrolled for")
        if active < self.active:
            raise FedstillError(f"rounds of {active} sites: this site enrolled for rounds of {self.active}")
        fixed = digest(fixed_part(setting))
        if self.setting and fixed != self.setting:
            raise FedstillError("a task with another setting than this run began with")
        return replace(self, setting=fixed)

    def with_turn(self, policy: Policy, deadline: float, received: int) -> "RunBook":
        """The book with one more turn begun, of so many seconds at most; refused where the policy allows no more."""
        if self.taken >= policy.turns_per_run:
            raise FedstillError(f"{self.taken} turns in this run: this site's policy allows no more")
        return replace(self._with(policy, deadline, received), taken=self.taken + 1)

    def with_exam(self, policy: Policy, deadline: float, round: int, models: int, received: int) -> "RunBook":
        """The book with one more exam begun; refused where the policy allows no more."""
        if models > policy.models_per_exam:
            raise FedstillError(f"an exam of {models} models: this site's policy allows {policy.models_per_exam}")
        if self.exams >= policy.exams_per_run:
            raise FedstillError(f"{self.exams} exams in this run: this site's policy allows no more")
        again = self.exams_in_round if round == self.exam_round else 0
        if again >= policy.exams_per_round or round < self.exam_round:
            raise FedstillError(f"another exam in round {round + 1}: this site's policy allows no more")
        known = self._with(policy, deadline, received)
        return replace(known, exams=self.exams + 1, exam_round=round, exams_in_round=again + 1)

    def _with(self, policy: Policy, deadline: float, count: int) -> "RunBook":
        if self.seconds > policy.run_seconds:
            raise FedstillError(f"this run took {self.seconds:.0f} s here: this site's policy allows no more")
        if self.bytes + count > policy.run_bytes:
            raise FedstillError(f"this run moved {self.bytes} bytes here: this site's policy allows no more")
        return replace(self, bytes=self.bytes + count, seconds=self.seconds + policy.seconds_of(deadline))


class RunFolder:
    """A run's folder at a site. It is named by the run's name and its unguessable number: names can be used again."""

    def __init__(self, state: Path, run: str, run_id: str) -> None:
        self.path = state / "runs" / f"{run}-{run_id}"
        self.file = self.path / "run.json"

    def read(self) -> RunBook | None:
        """The book of this run, if the site knows it."""
        return _read(self.file) if self.file.exists() else None

    def write(self, book: RunBook) -> None:
        """Keep the book."""
        record.write(self.file, json.dumps(asdict(book)).encode())


def _read(file: Path) -> RunBook:
    try:
        return RunBook(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise FedstillError(f"{file}: damaged ({readable(str(error))}); bring it back, or delete its folder") from None


def new_book(policy: Policy, state: Path, run_id: str, experiment: str) -> RunBook:
    """The book of a run that begins; refused where the policy allows no more runs today.

    What a policy allows in a run, a hub could otherwise have again and again, in one run after the other.
    """
    now = time.time()
    books = [_read(file) for file in state.glob("runs/*/run.json")]
    today = sum(1 for book in books if book.begun > now - DAY)
    if today >= policy.runs_per_day:
        raise FedstillError(f"{today} runs began here since yesterday: this site's policy allows no more")
    return RunBook(run_id, experiment, begun=now)


class States:
    """A client's states: a file for each round it took part in, as long as the hub may go back to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, round: int) -> Any:
        """The state after the last turn before `round`; None when there was none."""
        earlier = [t for t in self._rounds() if t < round]
        if not earlier:
            return None
        file = self._file(earlier[-1])
        side = file.with_suffix(".sha256")
        if not side.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != side.read_text():
            raise FedstillError(f"{file.name}: this site's state was changed or is damaged; the run cannot go on here")
        return record.load(file)

    def put(self, round: int, state: Any, needed: int) -> None:
        """Keep the state after `round`; forget what no round from `needed` on starts from."""
        if state is None:
            return
        data = record.dumps(state)
        record.write(self._file(round).with_suffix(".sha256"), hashlib.sha256(data).hexdigest().encode())
        record.write(self._file(round), data)
        old = [t for t in self._rounds() if t < needed]
        for t in old[:-1]:
            self._file(t).unlink(missing_ok=True)
            self._file(t).with_suffix(".sha256").unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        return sorted(int(file.stem) for file in self.folder.glob("[0-9]*.safetensors"))

    def _file(self, round: int) -> Path:
        return self.folder / f"{round:06d}.safetensors"


def agreed_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is fixed at enrolment: all that decides results, but how long the run is and how many sites come."""
    agreed = identity(settings, "clients", "rounds")
    around = agreed.get("wrappers")
    if isinstance(around, list | tuple):
        agreed["wrappers"] = [_own_settings(wrapper) for wrapper in around]
    return agreed


def _own_settings(wrapper: Any) -> Any:
    """A wrapper's settings but those that a run with so many sites gives it, whatever they were before."""
    return {k: v for k, v in wrapper.items() if k not in DERIVED} if isinstance(wrapper, Mapping) else wrapper


def fixed_part(setting: Setting) -> dict[str, Any]:
    """What is fixed by a run's first task beside the experiment: who takes part with what, and how samples are cast."""
    rest = {key: value for key, value in asdict(setting).items() if key != "experiment"}
    return {**rest, "clients": setting.experiment.get("clients")}


def consented_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a person signs or approves: all that is fixed at enrolment, for how many rounds and of how many sites."""
    return {**agreed_part(settings), "rounds": settings.get("rounds"), "clients": settings.get("clients")}


def disagreement(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting, of those fixed at enrolment, in which two experiments differ: in words, or None."""
    old: Any = agreed_part(before)
    new: Any = agreed_part(now)
    if old == new:
        return None
    path: list[str] = []
    while isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("name") == new.get("name"):
        path.append(next(key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)))
        old, new = old.get(path[-1]), new.get(path[-1])
    return f"{readable('.'.join(path))} = {old!r}, not {new!r}"


def digest(value: Any) -> str:
    """A checksum of a plain value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
