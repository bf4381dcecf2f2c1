"""Shared memory between processes: what is taken is what was put, and a copy of it."""

import json
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.record import Carries, carries, record
from fedstill.transports.processes import forks
from fedstill.transports.shared import Slot


@record
class Parcel:
    weights: Any = carries(Carries.WEIGHTS)
    samples: int = carries(Carries.SIZE)


def odd() -> dict[str, Tensor]:
    """Types of all widths, a scalar, nothing at all, and memory in another order."""
    image = torch.arange(24.0).view(1, 2, 3, 4)
    return {
        "flag": torch.tensor([True, False, True]),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
        "turned": image.to(memory_format=torch.channels_last),
        "transposed": torch.arange(6, dtype=torch.int16).view(2, 3).t(),
    }


def test_what_is_taken_is_what_was_put_and_a_copy_of_it() -> None:
    slot, sent = Slot(), odd()
    known = json.loads(json.dumps(slot.put((None, Parcel(sent, 3)))))  # the words go through a pipe
    nothing, found = slot.take(known)
    slot.put({"flag": torch.zeros(400)})
    assert nothing is None
    assert found.samples == 3
    assert found.weights.keys() == sent.keys()
    for name, tensor in sent.items():
        assert found.weights[name].dtype == tensor.dtype
        assert torch.equal(found.weights[name], tensor)


def test_what_does_not_fit_is_left_to_the_pipe() -> None:
    slot = Slot(1024)
    assert slot.put({"a": torch.zeros(256)}) is not None
    assert slot.put({"a": torch.zeros(257)}) is None
    assert slot.put(torch.zeros(3, dtype=torch.float8_e4m3fn)) is None


@pytest.mark.skipif(not forks(), reason="no fork here")
def test_another_process_reads_it() -> None:
    slot = Slot()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, json.dumps(slot.put(torch.arange(5.0))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert slot.take(json.loads(os.read(ours, 4096))).tolist() == [0, 1, 2, 3, 4]
    os.close(ours)
    os.close(theirs)
