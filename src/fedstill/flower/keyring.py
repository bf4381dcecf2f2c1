"""The keys a hub lets in: a name for each, one key for each name, and what was revoked stays out."""

import json
from collections.abc import Mapping
from pathlib import Path

from fedstill.core.errors import UsageError
from fedstill.core.record import write
from fedstill.flower.api import requests
from fedstill.flower.private import whole


class KeyRing:
    """The keys in a hub's folder; what changes is written at once."""

    def __init__(self, home: Path, allowed: Mapping[str, bytes]) -> None:
        """Let in exactly the keys of `allowed` that were not revoked, or, where none is named, those let in before."""
        self.file = home / "keys.json"
        with whole(self.file):
            known = json.loads(self.file.read_text()) if self.file.exists() else {"allowed": {}, "revoked": []}
            self.revoked: set[str] = set(known["revoked"])
            self.names: dict[bytes, str] = {bytes.fromhex(key): name for name, key in known["allowed"].items()}
        if allowed:
            self.names = {}
            for name, key in allowed.items():
                if not self.is_revoked(key):
                    self.allow(name, key)
        self._write()

    def allow(self, name: str, key: bytes) -> None:
        """Let a key in under this name; a name's new key takes the place of its old one, which is revoked."""
        if self.is_revoked(key):
            raise UsageError(f"site {name}: this key was revoked; make a new one")
        other = self.names.get(key)
        if other not in (None, name):
            raise UsageError(f"site {name}: its key is that of site {other}")
        for old in [k for k, n in self.names.items() if n == name and k != key]:
            self.revoked.add(old.hex())
            del self.names[old]
        self.names[key] = name
        self._write()

    def revoke(self, name: str) -> None:
        """Shut the site of this name out, for good with this key."""
        keys = [key for key, known in self.names.items() if known == name]
        if not keys:
            raise UsageError(f"site {name}: no such site is let in; known: {', '.join(sorted(self.names.values()))}")
        for key in keys:
            self.revoked.add(key.hex())
            del self.names[key]
        self._write()

    def is_revoked(self, key: bytes) -> bool:
        """Was this key shut out for good?"""
        return key.hex() in self.revoked

    def signer(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The name of the site that signed a request's headers just now; None where nobody who is let in did."""
        key = requests.signing_key(headers, self.names)
        return None if key is None else self.names[key]

    def _write(self) -> None:
        allowed = {name: key.hex() for key, name in self.names.items()}
        write(self.file, json.dumps({"allowed": allowed, "revoked": sorted(self.revoked)}, indent=2).encode())
