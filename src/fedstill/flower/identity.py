"""A site's own secret, and what is made under it: a checksum that tells whether its data changed, and no more."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from fedstill.data.own import Own


def secret_of(state: Path) -> bytes:
    """A secret of this site's, made once."""
    file = state / "secret"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(secrets.token_bytes(32))
    return file.read_bytes()


def secret_for(state: Path, purpose: str) -> str:
    """A secret for one purpose, which follows from the site's own (64 hexadecimal digits)."""
    return hmac.new(secret_of(state), purpose.encode(), hashlib.sha256).hexdigest()


def fingerprint(own: Own, secret: bytes) -> str:
    """A checksum of a site's data that only this site could make: it tells no one else what they are."""
    made = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (own.train, own.test):
        if part is not None:
            made.update(part.x.numpy().tobytes())
            made.update(part.y.numpy().tobytes())
    made.update("\0".join(own.class_names).encode())
    return made.hexdigest()
