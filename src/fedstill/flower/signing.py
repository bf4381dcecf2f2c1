"""Signed experiments: a person signs a plan with an ed25519 key, and sites that know the key check it."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, UsageError


def signed_text(run: str, settings: Mapping[str, Any]) -> bytes:
    """What is signed: the run's name and the experiment's settings, always written the same way."""
    return json.dumps({"run": run, "experiment": settings}, sort_keys=True, separators=(",", ":")).encode()


def sign(key: Path, run: str, settings: Mapping[str, Any]) -> str:
    """The signature of an experiment under this run's name, with the private key in a file (base64)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        private = load_ssh_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise UsageError(f"--sign {key}: not a private key that can be read ({error})") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageError(f"--sign {key}: must be an ed25519 key (fedstill keys --person {key.name})")
    return base64.b64encode(private.sign(signed_text(run, settings))).decode()


def check(signers: Sequence[Path], signature: str, run: str, settings: Mapping[str, Any]) -> str:
    """The signer's name; raises where no key of `signers` made this signature."""
    from cryptography.exceptions import InvalidSignature

    if not signature:
        raise FedstillError("the experiment is not signed; this site's policy asks for a known person's signature")
    try:
        given = base64.b64decode(signature, validate=True)
    except ValueError:
        raise FedstillError("the experiment's signature cannot be read") from None
    for path in signers:
        try:
            read_signer(path).verify(given, signed_text(run, settings))
            return path.stem
        except InvalidSignature:
            continue
    raise FedstillError("the experiment is signed by nobody this site knows")


def read_signer(path: Path) -> Any:
    """A person's public key from its file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"signers: {path}: not a public key that can be read ({error})") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"signers: {path}: must be an ed25519 key, as `fedstill keys --person` makes")
    return key
