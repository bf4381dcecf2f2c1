"""A site's part in secure sums: it masks its own vector, and helps to take the masks off the sum.

The protocol is `parts.secrecy`'s. The secrets of a round are held in memory only: a site that is started again in the
middle of a round is lost to it, as is one that was never there. What the turn changed in the client's state is kept
once the site is asked to unmask, that is when enough vectors arrived, its own among them: a round that was given up
leaves no trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedstill.core.errors import UsageError
from fedstill.core.method import Env
from fedstill.core.record import Carries, carried
from fedstill.experiment.config import Experiment
from fedstill.experiment.setting import Setting
from fedstill.flower.messages import (
    KeysAsked,
    KeysGiven,
    MaskedTask,
    SharesAsked,
    SharesGiven,
    SumAnswer,
    SumQuestion,
    Task,
    UnmaskAsked,
    UnmaskGiven,
)
from fedstill.flower.once import only_once
from fedstill.flower.partners import Keys, check_members, signed_keys
from fedstill.flower.runbook import States
from fedstill.parts.secrecy import Member, Share
from fedstill.parts.secure_sums import Masked, SecureSums


def sums_of(plan: Experiment) -> SecureSums | None:
    """The plan's secure sums, where it has them."""
    return next((wrapper for wrapper in plan.wrappers if isinstance(wrapper, SecureSums)), None)


def needed(plan: Experiment) -> int:
    """How many of a round's sites must stay to the end: by the plan all agreed to, whatever the hub says later."""
    sums = sums_of(plan)
    if sums is None:
        raise UsageError("a message of secure sums in a run without them")
    return sums.needed(plan.active_count)


@dataclass
class Meeting:
    """One round of secure sums at a site."""

    run_id: str
    round: int
    member: Member
    senders: tuple[int, ...] = ()
    """Who has shared secrets, this site too."""
    state: Any = field(default=None, repr=False)
    """The client's state after its turn, which is kept when the site is asked to unmask."""


class Meetings:
    """The meeting that a site is in: one at a time, in memory."""

    def __init__(self, key: Path | None = None, partners: Sequence[Path] = ()) -> None:
        self.now: Meeting | None = None
        self.key = key
        """What this site's keys of a round are signed with."""
        self.partners = partners
        """The other sites' public keys, where their signatures are checked."""

    def answer(self, setting: Setting, asked: SumQuestion, folder: Path, common: Mapping[str, Any]) -> SumAnswer:
        """The answer to a question of phases 0, 1 or 3; `folder` is the run's, `common` names the question."""
        plan, site = setting.plan, setting.sites[asked.client]
        match asked:
            case KeysAsked():
                masking, sealing = pair = self.keys(plan, asked)
                signature = signed_keys(self.key, site, asked, pair)
                return KeysGiven(**common, masking=masking.hex(), sealing=sealing.hex(), signature=signature)
            case SharesAsked():
                keys = {client: (bytes.fromhex(one), bytes.fromhex(two)) for client, one, two, _ in asked.keys}
                check_members(self.partners, site, setting.sites, asked, keys)
                letters = self.shares(plan, asked, keys)
                return SharesGiven(**common, letters=tuple((k, letter.hex()) for k, letter in letters.items()))
            case UnmaskAsked():
                only_once(folder, asked.round, repr(sorted(asked.arrived)).encode(), "unmasked")
                state, seeds, masks = self.unmask(asked)
                States(folder).put(asked.round, state, needed=asked.kept)
                return UnmaskGiven(**common, seeds=_told(seeds), masks=_told(masks))

    def keys(self, plan: Experiment, asked: KeysAsked) -> tuple[bytes, bytes]:
        """Phase 0: new keys for this round; whatever meeting was before is over."""
        member = Member(asked.client, needed(plan))
        self.now = Meeting(asked.run_id, asked.round, member)
        return member.public()

    def shares(self, plan: Experiment, asked: SharesAsked, keys: Keys) -> dict[int, bytes]:
        """Phase 1: for every other member a sealed letter with shares of this site's secrets."""
        member = self._meeting(asked).member
        if member.keys or member.number not in keys or len(keys) > plan.active_count:
            raise UsageError("secure sums: shares were given already, or the members are not those of a round")
        return member.shares(keys)

    def masked(self, sums: SecureSums, env: Env, asked: Task, state: Any, upload: Any) -> Masked:
        """Phase 2: the upload as a vector under masks; its state after the turn waits for phase 3."""
        if not isinstance(asked, MaskedTask):
            raise UsageError("a task without letters in a run of secure sums: the upload would leave unmasked")
        meeting = self._meeting(asked)
        if meeting.senders:
            raise UsageError("secure sums: a second vector in one round")
        letters = {sender: bytes.fromhex(letter) for sender, letter in asked.letters}
        words = meeting.member.masked(letters, sums.words(env, asked.client, upload))
        meeting.senders = tuple(sorted({*letters, asked.client}))
        meeting.state = state
        version = carried(upload, Carries.VERSION)
        return Masked(torch.from_numpy(words.view("int32")), 0 if version is None else version)

    def unmask(self, asked: UnmaskAsked) -> tuple[Any, dict[int, Share], dict[int, Share]]:
        """Phase 3: the state to keep, shares of the seeds of those who arrived, and of the keys of those lost."""
        meeting = self._meeting(asked)
        if asked.client not in asked.arrived or not {*asked.arrived} <= {*meeting.senders}:
            raise UsageError("secure sums: an unmasking without this site's vector, or of members that were not there")
        seeds, masks = meeting.member.unmask(asked.arrived, set(meeting.senders) - set(asked.arrived))
        self.now = None
        return meeting.state, seeds, masks

    def _meeting(self, asked: SharesAsked | Task | UnmaskAsked) -> Meeting:
        if self.now is None or (self.now.run_id, self.now.round) != (asked.run_id, asked.round):
            raise UsageError(
                f"secure sums: this site is in no meeting of round {asked.round + 1}; was it started anew?"
            )
        return self.now


def _told(shares: Mapping[int, Share]) -> tuple[tuple[int, int, str], ...]:
    return tuple((owner, place, share.hex()) for owner, (place, share) in shares.items())
