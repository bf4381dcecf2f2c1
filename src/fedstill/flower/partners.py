"""Sites that know each other: in secure sums each signs its keys of a round, and no hub can put others in their place.

A site signs with the key by which the hub knows it. Who checks is a matter of a site's policy (`partners`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstill.core.errors import FedstillError
from fedstill.flower.keys import read_private, read_public_key
from fedstill.flower.messages import KeysAsked, SharesAsked

Keys = Mapping[int, tuple[bytes, bytes]]
"""By client, its public keys of a round: for masks, and for sealed letters."""


def signed_keys(key: Path | None, site: str, asked: KeysAsked, keys: tuple[bytes, bytes]) -> str:
    """A site's signature of its keys in this very round; empty where it has no key to sign with."""
    if key is None:
        return ""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return str(read_private(key).sign(_text(site, asked, keys), ECDSA(SHA384())).hex())


def check_members(partners: Sequence[Path], site: str, sites: Sequence[str], asked: SharesAsked, keys: Keys) -> None:
    """Refuse members that are not among the partners, or whose keys are not those that they signed.

    Args:
        partners: the files of their public keys; none: the hub is trusted to pass keys on.
        site: this site's own name.
        sites: by client, the sites' names.
        asked: the question, with every member's signature.
        keys: every member's keys.
    """
    if not partners:
        return
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    known = {path.stem: path for path in partners}
    signatures = {client: bytes.fromhex(signature) for client, _, _, signature in asked.keys}
    for client, pair in keys.items():
        name = sites[client] if client < len(sites) else f"client {client}"
        if name == site:
            continue
        if name not in known:
            raise FedstillError(f"secure sums with {name}: not one of the partners that this site's policy names")
        try:
            read_public_key(known[name]).verify(signatures[client], _text(name, asked, pair), ECDSA(SHA384()))
        except InvalidSignature:
            raise FedstillError(f"secure sums: the keys of {name} are not signed by it") from None


def _text(site: str, asked: KeysAsked | SharesAsked, keys: tuple[bytes, bytes]) -> bytes:
    """What is signed: whose keys, in which round of which run."""
    return f"{asked.run_id} {asked.round} {site} {keys[0].hex()} {keys[1].hex()}".encode()
