"""How well a run is: which clients' replies were not used, round by round and in sum, and what is likely wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedstill.core.loop import REFUSED
from fedstill.core.method import Method
from fedstill.core.record import NOT_FINITE, TOO_LONG
from fedstill.parts.learner import LocalTraining
from fedstill.transports.dropping import DROPPED

KINDS = {
    "diverging": "sent numbers that are not finite or far too large",
    "refused": "sent what cannot be used, such as something of another form",
    "dropped": "dropped out, as the experiment asked",
    "missing": "did not answer",
}
"""Why a client's reply was not used."""


def kind(why: str) -> str:
    """The kind of a reason that a round gives.

    >>> kind("dropped out"), kind("refused: weights/a has the shape (2,)"), kind("its worker died, twice")
    ('dropped', 'refused', 'missing')
    """
    if why == DROPPED:
        return "dropped"
    if why.startswith(REFUSED):
        return "diverging" if NOT_FINITE in why or TOO_LONG in why else "refused"
    return "missing"


@dataclass(frozen=True)
class RoundHealth:
    """One round: how many clients were asked, and why some replies were not used."""

    round: int
    asked: int
    reasons: Mapping[str, str]
    """Client → why its reply was not used."""

    @property
    def used(self) -> int:
        """How many replies the server used."""
        return self.asked - len(self.reasons)

    @property
    def counts(self) -> dict[str, int]:
        """How many clients there are of each kind of reason."""
        counted = Counter(kind(why) for why in self.reasons.values())
        return {name: counted[name] for name in KINDS if counted[name]}

    @property
    def unexpected(self) -> dict[str, str]:
        """The reasons that nobody asked for: all but simulated drop-outs."""
        return {client: why for client, why in self.reasons.items() if kind(why) != "dropped"}

    def line(self) -> str:
        """The round in one line, with the first reason of each kind; empty when nothing unexpected happened."""
        first: dict[str, list[str]] = {}
        for client, why in self.unexpected.items():
            first.setdefault(kind(why), []).append(client)
        words = [
            f"{len(clients)} {name} (client {clients[0]}: {self.reasons[clients[0]].removeprefix(REFUSED)})"
            for name, clients in first.items()
        ]
        return f"round {self.round}: {self.used} of {self.asked} replies used; {', '.join(words)}" if words else ""


@dataclass(frozen=True)
class Health:
    """All rounds of a run."""

    rounds: tuple[RoundHealth, ...]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "Health":
        """The health that a run's lines tell."""
        return cls(tuple(RoundHealth(row["round"], len(row["active"]), dict(row["missing"])) for row in rows))

    @cached_property
    def total(self) -> dict[str, int]:
        """How many replies were asked for and used, and how many not for each kind of reason, over all rounds."""
        lost = Counter(kind(why) for entry in self.rounds for why in entry.reasons.values())
        used = sum(entry.used for entry in self.rounds)
        return {"asked": sum(entry.asked for entry in self.rounds), "used": used, **{k: lost[k] for k in KINDS}}

    @property
    def well(self) -> bool:
        """Was every reply used that was not meant to be dropped?"""
        return not any(entry.unexpected for entry in self.rounds)

    @property
    def failed(self) -> bool:
        """Was no reply ever used, in all rounds?"""
        return bool(self.rounds) and not self.total["used"]

    def __str__(self) -> str:
        total = self.total
        lost = [f"{total[name]} {name}" for name in KINDS if total[name]]
        return f"{total['used']} of {total['asked']} replies used" + (f"; {', '.join(lost)}" if lost else "")

    def clients(self) -> dict[str, dict[str, int]]:
        """For each client whose replies were not always used: how often, by kind."""
        reasons: dict[str, Counter[str]] = {}
        for entry in self.rounds:
            for client, why in entry.reasons.items():
                reasons.setdefault(client, Counter())[kind(why)] += 1
        return {client: dict(reasons[client]) for client in sorted(reasons, key=int)}

    def plain(self) -> dict[str, Any]:
        """The health as numbers and text: the sum, each client's, and the rounds in which something was lost."""
        ill = [{"round": e.round, "asked": e.asked, "used": e.used, **e.counts} for e in self.rounds if e.reasons]
        return {"total": self.total, "clients": self.clients(), "rounds": ill}


def cause(method: Method[Any, Any, Any, Any], health: Health) -> str:
    """What is likely wrong with a run in which no reply was ever used."""
    most = max(KINDS, key=lambda name: health.total[name])
    first = next(iter(health.rounds[0].reasons.items()))
    rates = [f"lr = {method.lr:g}"] if isinstance(method, LocalTraining) else []
    likely = {
        "diverging": f"training diverges; try a smaller step size{f' ({rates[0]})' if rates else ''}",
        "refused": "what clients send does not fit the method",
        "dropped": "every client drops out; try a smaller drop",
        "missing": "clients do not answer; see whether their machines and data are there",
    }
    return f"{likely[most]}; the first reason was, of client {first[0]}: {first[1].removeprefix(REFUSED)}"
