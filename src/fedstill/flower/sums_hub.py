"""The hub's part in secure sums: it carries keys and letters between sites, and sees masked numbers and their sum.

A site that does not answer in a phase is lost from then on; with fewer left than the threshold the round is given up,
before anything is unmasked. The protocol is `parts.secrecy`'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core import record
from fedstill.core.errors import FedstillError
from fedstill.core.method import Env, Reply
from fedstill.core.record import replaced
from fedstill.experiment.config import Experiment
from fedstill.flower.messages import (
    KeysAsked,
    KeysGiven,
    MaskedTask,
    RoundQuestion,
    SharesAsked,
    SharesGiven,
    UnmaskAsked,
    UnmaskGiven,
    Work,
)
from fedstill.flower.sums_site import needed, sums_of
from fedstill.flower.transport import SPARE, Bodies, FlowerTransport, Heard, NotAsked, Sums, written
from fedstill.parts.secrecy import PHASES, Share, TooFew, total
from fedstill.parts.secure_sums import Masked, SecureSums, given_up
from fedstill.parts.sums import vector

Answer = TypeVar("Answer", KeysGiven, SharesGiven, Work, UnmaskGiven)
Shares = Sequence[tuple[int, int, str]]


def summed(plan: Experiment) -> Sums | None:
    """How a round of this plan is held where the hub is to see sums only; None where it may see uploads."""
    sums = sums_of(plan)
    if sums is None:
        return None

    def round(link: FlowerTransport, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        return SumRound(link, env, sums, downs).replies()

    return round


class SumRound:
    """One round: phase by phase, who is left and what they sent."""

    def __init__(self, link: FlowerTransport, env: Env, sums: SecureSums, downs: Mapping[int, Any]) -> None:
        self.link = link
        self.env = env
        self.sums = sums
        self.downs = downs
        self.forms = {k: link.method.template(env.at(env.round, k)) for k in downs}
        self.length = len(vector(next(iter(self.forms.values()))))
        self.least = needed(link.plan)
        self.wrong: dict[int, str] = {}
        """Who was lost, and why."""
        self.asked: set[int] = set()
        self.members: set[int] = set()
        """Who gave keys: everybody shares secrets with all of these."""
        self.bytes: dict[int, dict[str, int]] = {}
        """Of the masked vectors that arrived, by field."""

    def replies(self) -> list[Reply[Any]]:
        """The round's replies: the mean for everybody whose vector arrived; for nobody where too few were left."""
        try:
            sums, versions = self.total()
        except FedstillError as error:
            sizes = self.env.sizes
            lost = [Reply(k, sizes[k], None, error=self.wrong.get(k), bytes=self.bytes.get(k)) for k in self.downs]
            return given_up(lost, str(error))
        finally:
            self.link.judge(self.wrong, self.asked)
        replies = []
        for k in self.downs:
            here = k in versions
            form = self.forms[k]
            if here and record.field_carrying(type(form), record.Carries.VERSION):
                form = replaced(form, versions[k], record.Carries.VERSION)
            why = None if here else self.wrong.get(k, "secure sums: lost")
            upload = form if here else None
            replies.append(Reply(k, self.env.sizes[k], upload, error=why, bytes=self.bytes.get(k)))
        return self.sums.opened_sum(self.env, replies, sums)

    def total(self) -> tuple[NDArray[np.float64], dict[int, int]]:
        """All phases: the sum of the vectors that arrived, and the counter that came with each."""
        common = {k: self.link.common(self.env, k) for k in self.downs}
        given_keys = {k: given for k, (given, _) in self.phase(0, KeysGiven, _made(KeysAsked, common, {})).items()}
        keys = {k: _pair(given) for k, given in given_keys.items()}
        self.members = set(keys)
        signed = tuple((j, given.masking, given.sealing, given.signature) for j, given in given_keys.items())
        listed = {k: {"keys": signed} for k in keys}
        shares = {k: given for k, (given, _) in self.phase(1, SharesGiven, _made(SharesAsked, common, listed)).items()}
        kept = self.link.kept(self.env)
        tasks = {k: {"letters": _letters_for(k, shares), "kept": kept} for k in shares}
        bodies = written({k: self.downs[k] for k in shares})
        work = self.phase(2, Work, _made(MaskedTask, common, tasks), bodies)
        masked = {k: self.masked(body) for k, (_, body) in work.items()}
        ends = {k: {"arrived": tuple(masked), "kept": kept} for k in masked}
        unmaskings = [given for given, _ in self.phase(3, UnmaskGiven, _made(UnmaskAsked, common, ends)).values()]
        words = {k: upload.words.numpy().view(np.uint32) for k, upload in masked.items()}
        revealed = [(_read(given.seeds), _read(given.masks)) for given in unmaskings]
        try:
            summed_words = total(words, list(shares), keys, revealed, self.least)
        except (KeyError, ValueError, IndexError) as error:
            raise FedstillError(f"shares that do not unmask the sum ({error})") from None
        return self.sums.scale.real(summed_words, len(masked)), {k: upload.version for k, upload in masked.items()}

    def phase(
        self, phase: int, kind: type[Answer], questions: Mapping[int, RoundQuestion], bodies: Bodies | None = None
    ) -> dict[int, tuple[Answer, bytes]]:
        """Heads and bodies of the answers of one phase; whoever gives none is lost. Too few are left: `TooFew`."""
        bodies_by_client = [(None, list(questions))] if bodies is None else bodies
        heard: dict[int, tuple[Answer, bytes]] = {}
        answers = self.link.ask(self.env, questions, bodies_by_client, kind, "train", 2 * 4 * self.length + SPARE)
        self.asked |= {k for k, answer in answers.items() if not isinstance(answer, NotAsked)}
        for k, answer in answers.items():
            try:
                heard[k] = self.fitting(kind, answer)
            except FedstillError as error:
                self.wrong[k] = f"secure sums: lost while {PHASES[phase]}: {error}"
        if len(heard) < self.least:
            raise TooFew(f"only {len(heard)} sites were left after {PHASES[phase]}, {self.least} are needed")
        return heard

    def fitting(self, kind: type[Answer], answer: Heard | FedstillError) -> tuple[Answer, bytes]:
        """An answer's head and body, of the form that this phase asks for."""
        if isinstance(answer, FedstillError):
            raise answer
        if not isinstance(answer.head, kind):
            raise FedstillError(f"refused: a message of kind {answer.head.kind!r}")
        head, body = answer.head, answer.body or b""
        if isinstance(head, KeysGiven) and {len(head.masking), len(head.sealing)} != {64}:
            raise FedstillError("refused: keys are 32 bytes long")
        if isinstance(head, SharesGiven) and sorted(k for k, _ in head.letters) != sorted(self.members - {head.client}):
            raise FedstillError("refused: not one letter for every other member")
        if isinstance(head, Work):
            self.bytes[head.client] = record.sizes(self.masked(body))
        return head, body

    def masked(self, body: bytes) -> Masked:
        """The masked vector in these bytes: as many whole numbers as the upload has."""
        upload = record.loads(body)
        blank = Masked(torch.zeros(self.length, dtype=torch.int32), 0)
        wrong = record.fault(upload, blank, limit=2.0**33)
        if wrong or not isinstance(upload, Masked):
            raise FedstillError(f"refused: {wrong or 'not masked numbers'}")
        return upload


Q = TypeVar("Q", KeysAsked, SharesAsked, MaskedTask, UnmaskAsked)


def _made(kind: type[Q], common: Mapping[int, Any], more: Mapping[int, Mapping[str, Any]]) -> dict[int, RoundQuestion]:
    """A question of one kind for each of the clients that `more` is about; for all where it is about none."""
    return {k: kind(**common[k], **more.get(k, {})) for k in (more or common)}


def _pair(given: KeysGiven) -> tuple[bytes, bytes]:
    return bytes.fromhex(given.masking), bytes.fromhex(given.sealing)


def _letters_for(receiver: int, shares: Mapping[int, SharesGiven]) -> tuple[tuple[int, str], ...]:
    """By sender, the letters to one of those who are left."""
    letters = []
    for sender, given in shares.items():
        letter = dict(given.letters).get(receiver)
        if sender != receiver and letter is not None:
            letters.append((sender, letter))
    return tuple(letters)


def _read(shares: Shares) -> dict[int, Share]:
    return {owner: (place, bytes.fromhex(share)) for owner, place, share in shares}
