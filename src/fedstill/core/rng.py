"""Keyed random streams: every purpose, round and client draws from a stream of its own.

The same key gives the same numbers whatever the workers, the order of finishing, and after a resume; and a new
consumer (an attack, say) never shifts the numbers of another.

    >>> key(1, "batches", 0, 3) == key(1, "batches", 0, 3) != key(1, "batches", 1, 3)
    True
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, *where: int | None) -> int:
    """A 63-bit seed from the run's seed, a purpose, and the round and client it is for."""
    text = repr((seed, purpose, *where)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def torch_stream(seed: int, purpose: str, *where: int | None) -> torch.Generator:
    """A torch generator for this key, on the CPU (draws are moved to a device afterwards, so that devices agree)."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


def numpy_stream(seed: int, purpose: str, *where: int | None) -> np.random.Generator:
    """A numpy generator for this key."""
    return np.random.default_rng(key(seed, purpose, *where))


_torch = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's own stream (initialisation draws from it) starts at `seed`; afterwards it is as it was.

    One thread at a time, since that stream is the process's.
    """
    with _torch:
        before = torch.default_generator.get_state()
        _start_at(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


def _start_at(seed: int) -> None:
    """What `torch.manual_seed` does, for the devices in use: it also prepares those that are not, at some cost."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
