"""Random numbers that a guarantee rests on: nobody without the key can tell them from chance, or try all keys.

torch's own generator keeps 32 bits of a seed on the CPU, few enough to try every one; and its numbers follow a linear
rule. Noise for privacy is drawn from ChaCha20 (`randomgen`) under a key of 256 bits instead.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import extra


def key_of(*words: Any) -> bytes:
    """A key of 32 bytes that follows from all these words; other words, another key.

    >>> key_of(1, "noise", 0, 3) == key_of(1, "noise", 0, 3) != key_of(1, "noise", 1, 3)
    True
    """
    return hashlib.blake2b(repr(words).encode(), digest_size=32).digest()


def stream_of(key: bytes, purpose: str) -> np.random.Generator:
    """The stream of a key for one purpose: ChaCha20 in all its 20 rounds."""
    with extra("privacy", "private"):
        from randomgen import ChaCha
    return np.random.Generator(ChaCha(key=int.from_bytes(key_of(key, purpose)), rounds=20))


def gaussian(stream: np.random.Generator, std: float, count: int, secret: bool) -> Tensor:
    """So many draws of Gaussian noise, in float64.

    Args:
        stream: where they come from.
        std: their standard deviation.
        count: how many.
        secret: each is half the sum of four draws. A single one has gaps in its last bits that depend on what it was
            added to (Holohan and Braghin, Secure Random Sampling in Differential Privacy, ESORICS 2021; opacus does
            the same in its secure mode). In a simulation, whose key everybody may know, one draw is enough.
    """
    if not secret:
        return std * torch.from_numpy(stream.standard_normal(count))
    return std * torch.from_numpy(stream.standard_normal((4, count)).sum(0) / 2)
