"""How many bytes a site may send in answer to a question.

The run's own process knows how large an answer can be, and writes it down. The guard sees the bytes come in and holds
the sites to it, so that what nobody will read does not reach the hub's database.
"""

import hashlib
from pathlib import Path

from fedstill.core.record import write

FOLDER = ".answers"
ENROLMENT = 8 << 20
"""Bytes of an enrolment or of marks, at most: what is allowed before a run says more."""
SPARE = 6 << 20
"""More than one of Flower's objects: an answer that is too large is noticed by its reader before it is cut off."""
REMEMBERED = 1000
"""Questions of a site that are remembered as answered."""


def allow(runs: Path, run: int, count: int) -> None:
    """Let answers in this run have so many bytes; `run` is its number at the hub."""
    write(runs / FOLDER / str(run), str(count).encode())


class Allowances:
    """What each site may still send."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.left: dict[str, int] = {}
        self.answered: dict[str, dict[str, bytes]] = {}
        """By site and question, the checksum of its announcement; the oldest first."""

    def first(self, site: str, question: str, announcement: bytes) -> bool:
        """Is this the only answer that this site announces to this question? The same one may be sent again."""
        return self.answered.get(site, {}).get(question, _sum(announcement)) == _sum(announcement)

    def grant(self, site: str, run: int, question: str, announcement: bytes) -> None:
        """An answer of this site to this question was announced, and taken: once for each question."""
        answered = self.answered.setdefault(site, {})
        if question not in answered:
            answered[question] = _sum(announcement)
            if len(answered) > REMEMBERED:
                del answered[next(iter(answered))]
            self.left[site] = self._allowed(run) + SPARE

    def take(self, site: str, count: int) -> bool:
        """May this site send so many bytes more?"""
        left = self.left.get(site, 0) - count
        if left < 0:
            return False
        self.left[site] = left
        return True

    def _allowed(self, run: int) -> int:
        try:
            return max(ENROLMENT, int((self.runs / FOLDER / str(run)).read_text()))
        except (OSError, ValueError):
            return ENROLMENT


def _sum(announcement: bytes) -> bytes:
    return hashlib.sha256(announcement).digest()
