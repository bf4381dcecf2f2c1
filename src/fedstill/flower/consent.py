"""A person's consent to an experiment: signed by one whom the site knows, approved by one who is there."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.core import record
from fedstill.core.errors import FedstillError, UsageError
from fedstill.flower.audit import AuditLog
from fedstill.flower.messages import Enrol
from fedstill.flower.policy import Policy
from fedstill.flower.runbook import consented_part, digest
from fedstill.flower.signing import check

MOST_WAITING = 100


def consented(policy: Policy, state: Path, asked: Enrol, settings: Mapping[str, Any], begins: bool) -> str:
    """The name of the person who signed the experiment, where the policy asks for one; raises without consent.

    A signature is good for one run: a hub that kept it cannot begin the same experiment again, under a number of which
    the site remembers nothing, be it new or (`begins`) forgotten.
    """
    signer = ""
    if policy.signers:
        signer = check(policy.signers, asked.signature, asked.run, consented_part(settings))
        used = state / "signed" / hashlib.sha256(asked.signature.encode()).hexdigest()
        if used.exists() and (begins or used.read_text() != asked.run_id):
            raise FedstillError("this signed experiment was begun before; sign it again under another run's name")
        if not used.exists():
            record.write(used, asked.run_id.encode())
    agreed = digest(consented_part(settings))
    if policy.approval and not (state / "approved" / agreed).exists():
        waiting = state / "waiting" / f"{agreed[:12]}.json"
        if not waiting.exists() and len(list(waiting.parent.glob("*.json"))) >= MOST_WAITING:
            raise UsageError(f"{MOST_WAITING} experiments wait for approval at this site already")
        content = {"run": asked.run, "digest": agreed, "experiment": settings}
        record.write(waiting, json.dumps(content, indent=2).encode())
        raise UsageError(f"experiment {agreed[:12]} waits for approval at this site")
    return signer


def approve(state: Path, digest_begins: str) -> str:
    """Approve a waiting experiment by the beginning of its digest; says what was approved."""
    waiting_here = sorted((state / "waiting").glob(f"{digest_begins}*.json")) if digest_begins else []
    if len(waiting_here) != 1:
        known = ", ".join(file.stem for file in sorted((state / "waiting").glob("*.json"))) or "none"
        raise UsageError(
            f"site approve {digest_begins}: no single experiment waits under this number; waiting: {known}"
        )
    waiting = json.loads(waiting_here[0].read_text())
    record.write(state / "approved" / waiting["digest"], waiting_here[0].read_bytes())
    waiting_here[0].unlink()
    AuditLog(state / "audit.jsonl").write("approved", experiment=waiting["digest"], run=waiting["run"])
    return f"approved for run {waiting['run']}: {json.dumps(waiting['experiment'])}"
