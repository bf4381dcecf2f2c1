"""A person's consent to an experiment: signed by one whom the site knows, approved by one who is there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.core import record
from fedstill.core.errors import FedstillError, UsageError
from fedstill.flower.approvals import number
from fedstill.flower.audit import AuditLog
from fedstill.flower.messages import Enrol
from fedstill.flower.policy import Policy
from fedstill.flower.runbook import consented_part
from fedstill.flower.signing import check

MOST_WAITING = 100
SHOWN = 12
"""Digits of an experiment's number that people are shown."""


def consented(policy: Policy, state: Path, asked: Enrol, settings: Mapping[str, Any], begins: bool) -> str:
    """The name of the person who signed the experiment, where the policy asks for one; raises without consent.

    Consent is good for one run: a hub cannot begin the same experiment again, under a number of which the site
    remembers nothing, be it new or (`begins`) forgotten. It is remembered by what was signed, since one signature can
    be written in several ways.
    """
    signer = ""
    if policy.signers:
        signer = check(policy.signers, asked.signature, asked.run, consented_part(settings))
        used = state / "signed" / f"{signer}-{number(asked.run, settings)}"
        if not _first_use(used, asked.run_id, begins):
            raise FedstillError("this signed experiment was begun before; sign it again under another run's name")
    agreed = number(asked.run, settings)
    if policy.approval:
        approved = (state / "approved" / agreed).exists()
        if not approved or not _first_use(state / "approved" / f"{agreed}.run", asked.run_id, begins):
            _wait(state, asked.run, agreed, settings)
            raise UsageError(f"experiment {agreed[:SHOWN]} waits for approval at this site")
    return signer


def _first_use(used: Path, run_id: str, begins: bool) -> bool:
    """Is a consent used for the first time, or for the run that it was used for before?"""
    if not used.exists():
        record.write(used, run_id.encode())
        return True
    return not begins and used.read_text() == run_id


def _wait(state: Path, run: str, agreed: str, settings: Mapping[str, Any]) -> None:
    """Enter an experiment among those that wait; under its whole number, of which a hub can find no second one."""
    waiting = state / "waiting" / f"{agreed}.json"
    if not waiting.exists() and len(list(waiting.parent.glob("*.json"))) >= MOST_WAITING:
        raise UsageError(f"{MOST_WAITING} experiments wait for approval at this site already")
    record.write(waiting, json.dumps({"run": run, "experiment": settings}, indent=2).encode())


def waiting_experiments(state: Path) -> str:
    """The experiments that wait for approval, each with its number and all its settings."""
    files = sorted((state / "waiting").glob("*.json"))
    lines = [f"{file.stem[:SHOWN]}  {json.dumps(json.loads(file.read_text()))}" for file in files]
    return "\n".join(lines) or "no experiment waits for approval here"


def approve(state: Path, begins: str) -> str:
    """Approve a waiting experiment, for one run, by the beginning of its number; says what was approved."""
    known = {file.stem: file for file in sorted((state / "waiting").glob("*.json"))}
    meant = [agreed for agreed in known if begins and agreed.startswith(begins)]
    if len(meant) != 1:
        numbers = ", ".join(agreed[:SHOWN] for agreed in known) or "none"
        raise UsageError(f"site approve {begins}: no single experiment waits under this number; waiting: {numbers}")
    (agreed,) = meant
    waiting = json.loads(known[agreed].read_text())
    record.write(state / "approved" / agreed, known[agreed].read_bytes())
    (state / "approved" / f"{agreed}.run").unlink(missing_ok=True)
    known[agreed].unlink()
    AuditLog(state / "audit.jsonl").write("approved", experiment=agreed, run=waiting["run"])
    return f"approved for run {waiting['run']}: {json.dumps(waiting['experiment'])}"
