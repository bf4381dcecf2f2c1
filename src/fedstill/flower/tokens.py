"""The hub's tokens: one for its keeper, and others with a role and an end.

A role's token is shown once, when it is made; the hub keeps its hash only.
"""

import hashlib
import hmac
import json
import os
import secrets
import time
from pathlib import Path
from typing import Literal, get_args

from fedstill.core.errors import UsageError
from fedstill.core.record import write
from fedstill.flower.private import whole

Role = Literal["start", "read", "register", "approve"]
ROLES: tuple[str, ...] = get_args(Role)
"""start: start and stop runs, and read; read: follow and fetch runs; register: let keys in and shut them out;
approve: approve experiments that others start."""
KEEPER = "keeper"
"""Who holds the token in the hub's own folder."""


class Tokens:
    """The tokens in a hub's folder."""

    def __init__(self, home: Path) -> None:
        self.file = home / "tokens.json"
        self.keeper = keeper_token(home)

    def holder(self, token: str, role: str) -> str | None:
        """The name of whoever holds this token, if it is good for this role now."""
        if hmac.compare_digest(token.encode(), self.keeper.encode()):
            return KEEPER
        entry = self._entries().get(_hash(token))
        with whole(self.file):
            if entry is None or float(entry["until"]) < time.time():
                return None
            given = entry["role"]
            return str(entry["name"]) if role in (given, "read" if given in ("start", "approve") else given) else None

    def make(self, name: str, role: str, days: float) -> str:
        """A new token for this person and role, good for so many days."""
        if name == KEEPER:
            raise UsageError(f"{KEEPER}: that is whoever keeps the hub; name the person")
        if role not in ROLES:
            raise UsageError(f"role {role!r}: must be one of {', '.join(ROLES)}")
        if not 0 < days <= 3660:
            raise UsageError(f"days = {days:g}: must be more than 0 and at most 3660")
        token = secrets.token_urlsafe(32)
        entry = {"name": name, "role": role, "until": time.time() + days * 86400}
        self._write({**self._entries(), _hash(token): entry})
        return token

    def withdraw(self, name: str) -> int:
        """Withdraw all tokens of this person; how many there were."""
        kept = {key: entry for key, entry in self._entries().items() if entry["name"] != name}
        count = len(self._entries()) - len(kept)
        self._write(kept)
        return count

    def _entries(self) -> dict[str, dict[str, str]]:
        with whole(self.file):
            return dict(json.loads(self.file.read_text())) if self.file.exists() else {}

    def _write(self, entries: dict[str, dict[str, str]] | dict[str, object]) -> None:
        write(self.file, json.dumps(entries, indent=2).encode())
        self.file.chmod(0o600)


def keeper_token(home: Path) -> str:
    """The token of the hub's keeper, made once; whoever can read the file may do everything."""
    file = home / "token"
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(secrets.token_urlsafe(32))
    return file.read_text().strip()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
