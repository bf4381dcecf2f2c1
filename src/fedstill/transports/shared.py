"""Memory that two processes share: one puts a value's tensors there, the other takes copies of them.

A pipe would carry every byte through the system's small buffers, piece by piece, with both processes awake. Here a
tensor is copied twice, and only a few words about it go through the pipe.
"""

import math
import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedstill.core import record

SIZE = 1 << 25
"""Bytes of a slot; those that were never written take no memory."""
ALIGNED = 64
_KINDS = {
    str(kind): kind
    for kind in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


class Slot:
    """Holds one value at a time, between the processes that were forked after it was made."""

    def __init__(self, size: int = SIZE) -> None:
        self._memory = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)

    def put(self, value: Any) -> dict[str, Any] | None:
        """Write a value over the one before; what `take` needs to know, None for a value that does not fit."""
        tensors: dict[str, Tensor] = {}
        spec = record.flatten(value, tensors)
        places: dict[str, tuple[str, list[int], int]] = {}
        end = 0
        for name, tensor in tensors.items():
            places[name] = (str(tensor.dtype), list(tensor.shape), end)
            end += math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
        if end > len(self._memory) or any(kind not in _KINDS for kind, _, _ in places.values()):
            return None
        for name, tensor in tensors.items():
            self._at(*places[name]).copy_(tensor.detach())
        return {"spec": spec, "places": places}

    def take(self, known: Mapping[str, Any]) -> Any:
        """The value that `put` wrote, by what `put` gave: a copy."""
        tensors = {name: self._at(*place).clone() for name, place in known["places"].items()}
        return record.unflatten(known["spec"], tensors)

    def _at(self, kind: str, shape: list[int], start: int) -> Tensor:
        dtype = _KINDS[kind]
        return self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
