"""Sums that nobody can take apart: the protocol of secure aggregation, as its members and its hub see it.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
Privacy-Preserving Machine Learning. CCS 2017. Every two members agree on a mask that one adds and the other subtracts;
each adds one more of its own. Seeds and keys are shared among all, so that the masks of those who drop out can be
taken off again by `threshold` of the rest, and by no fewer.

    phase 0  keys      each member sends two public keys
    phase 1  shares    each member sends every other its shares of its seed and of its masking key, encrypted
    phase 2  masked    each member sends its vector, masked, in whole numbers modulo 2³²
    phase 3  unmask    each member sends shares of the seeds of those whose vector came, and of the keys of the others

Curve, key derivation, encryption and mask stream are `cryptography`'s, the secret sharing is pycryptodome's. Members
are honest but curious, as is the hub; it is trusted to pass public keys on as they are, but by sites that know each
other's keys (`flower.partners`).
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import FedstillError

Words = NDArray[np.uint32]
Share = tuple[int, bytes]
PHASES = ("sending keys", "sharing secrets", "sending masked vectors", "unmasking")


class TooFew(FedstillError):
    """Fewer members are left than the threshold: the round is given up, and nothing is unmasked."""


@dataclass
class Member:
    """One client in one round: its secrets never leave it, but as shares."""

    number: int
    threshold: int
    seed: bytes = field(default_factory=lambda: os.urandom(32))
    keys: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict)
    held: dict[int, tuple[Share, Share]] = field(default_factory=dict)
    """By owner: its share of that member's seed, and of its masking key."""
    revealed: bool = False
    """Has it told its shares already?"""

    def __post_init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._masking, self._sealing = X25519PrivateKey.generate(), X25519PrivateKey.generate()

    def public(self) -> tuple[bytes, bytes]:
        """Phase 0: its public keys, for masks and for sealed letters."""
        return self._masking.public_key().public_bytes_raw(), self._sealing.public_key().public_bytes_raw()

    def shares(self, keys: Mapping[int, tuple[bytes, bytes]]) -> dict[int, bytes]:
        """Phase 1: for every other member a sealed letter with its shares of this one's secrets."""
        if len(keys) < self.threshold:
            raise TooFew(f"only {len(keys)} members, {self.threshold} are needed")
        if keys[self.number] != self.public() or len({key for pair in keys.values() for key in pair}) < 2 * len(keys):
            raise FedstillError("secure sums: the public keys were not passed on as they were sent")
        self.keys = dict(keys)
        seeds = split(self.seed, self.threshold, len(keys))
        masks = split(self._masking.private_bytes_raw(), self.threshold, len(keys))
        letters = {}
        for place, number in enumerate(sorted(keys)):
            if number == self.number:
                self.held[number] = (seeds[place], masks[place])
            else:
                plain = b"".join([bytes([seeds[place][0]]), seeds[place][1], masks[place][1]])
                letters[number] = seal(self._letter_key(number), plain, self.number, number)
        return letters

    def masked(self, letters: Mapping[int, bytes], values: Words) -> Words:
        """Phase 2: the vector with masks for every member that sent shares, and one of its own."""
        if len(letters) + 1 < self.threshold:
            raise TooFew(f"only {len(letters) + 1} members shared their secrets, {self.threshold} are needed")
        for sender, letter in letters.items():
            plain = unseal(self._letter_key(sender), letter, sender, self.number)
            self.held[sender] = ((plain[0], plain[1:33]), (plain[0], plain[33:65]))
        out = values + stream(self.seed, len(values))
        for other in letters:
            mask = stream(agreed(self._masking, self.keys[other][0]), len(values))
            out = out + mask if self.number > other else out - mask
        return out

    def unmask(self, arrived: Collection[int], lost: Collection[int]) -> tuple[dict[int, Share], dict[int, Share]]:
        """Phase 3: shares of the seeds of those whose vector arrived, and of the keys of those who were lost.

        Of nobody both, and once only: seed and key together would lay a vector open. More than half are needed for
        each, so no two sets of members who each answer once can give both away.
        """
        if len(arrived) < self.threshold or set(arrived) & set(lost):
            raise TooFew(f"{len(arrived)} vectors arrived, {self.threshold} are needed; nothing is unmasked")
        if self.revealed or {*arrived, *lost} - self.held.keys():
            raise FedstillError("secure sums: a second unmasking, or of members that were not there; nothing is told")
        self.revealed = True
        seeds = {number: self.held[number][0] for number in arrived}
        return seeds, {number: self.held[number][1] for number in lost}

    def _letter_key(self, other: int) -> bytes:
        return agreed(self._sealing, self.keys[other][1])


def total(
    vectors: Mapping[int, Words],
    shared: Collection[int],
    keys: Mapping[int, tuple[bytes, bytes]],
    revealed: Sequence[tuple[Mapping[int, Share], Mapping[int, Share]]],
    threshold: int,
) -> Words:
    """The hub's sum of all vectors that arrived, without masks.

    Args:
        vectors: by member, the masked vectors that arrived.
        shared: the members that shared their secrets; those without a vector were lost on the way.
        keys: every member's public keys.
        revealed: what the members that were left sent in phase 3.
        threshold: how many of those are needed.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    if len(revealed) < threshold:
        raise TooFew(f"only {len(revealed)} members are left to unmask, {threshold} are needed")
    length = len(next(iter(vectors.values())))
    unmasked = np.zeros(length, dtype=np.uint32)
    for number, masked in vectors.items():
        unmasked = unmasked + masked - stream(joined([seeds[number] for seeds, _ in revealed[:threshold]]), length)
    for number in set(shared) - set(vectors):
        key = X25519PrivateKey.from_private_bytes(joined([masks[number] for _, masks in revealed[:threshold]]))
        for other in vectors:  # whoever's vector arrived has masked it with the lost member
            mask = stream(agreed(key, keys[other][0]), length)
            unmasked = unmasked - mask if other > number else unmasked + mask
    return unmasked


def split(secret: bytes, threshold: int, members: int) -> list[Share]:
    """A secret of 32 bytes in as many shares, any `threshold` of which give it back."""
    from Crypto.Protocol.SecretSharing import Shamir

    halves = [Shamir.split(threshold, members, secret[start : start + 16], ssss=False) for start in (0, 16)]
    return [(first[0], first[1] + second[1]) for first, second in zip(*halves, strict=True)]


def joined(shares: Sequence[Share]) -> bytes:
    """The secret that these shares are of."""
    from Crypto.Protocol.SecretSharing import Shamir

    return b"".join(
        Shamir.combine([(place, share[at : at + 16]) for place, share in shares], ssss=False) for at in (0, 16)
    )


def agreed(own: Any, public: bytes) -> bytes:
    """The 32 bytes that the owner of a private key and that of a public one have in common."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    secret = own.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), 32, salt=None, info=b"fedstill secure sums").derive(secret)


def seal(key: bytes, plain: bytes, sender: int, receiver: int) -> bytes:
    """A letter that only the receiver can open, and that only the sender can have written."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = os.urandom(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, f"{sender}>{receiver}".encode())


def unseal(key: bytes, letter: bytes, sender: int, receiver: int) -> bytes:
    """What is in a letter; one that was changed or is somebody else's is refused."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(letter[:12], letter[12:], f"{sender}>{receiver}".encode())
    except InvalidTag:
        raise FedstillError(f"secure sums: a letter from {sender} to {receiver} was changed on its way") from None


def stream(key: bytes, length: int) -> Words:
    """So many words that look random to whoever has not the key: AES-256 in counter mode, a key for one stream only."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    bits = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * length))
    return np.frombuffer(bits, dtype="<u4").astype(np.uint32)
