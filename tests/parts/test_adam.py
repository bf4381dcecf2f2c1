"""Our steps are torch.optim.Adam's, to the bit."""

import pytest
import torch
from torch import Tensor

from fedstill.parts.adam import Adam


def twins() -> tuple[list[Tensor], list[Tensor]]:
    stream = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=stream) for shape in ((3, 5), (7,), (2, 3, 3, 3))]
    first.append(torch.randn(4, 3, 3, 3, generator=stream).contiguous(memory_format=torch.channels_last))
    return first, [tensor.clone() for tensor in first]


def test_the_first_step_by_hand() -> None:
    """w = 1, η = .1, λ = .5, g = 1.5: g + λ w = 2; m̂ = g and √v̂ = |g|, so that w = 1 − .1 · 2 / 2 = .9."""
    w = torch.tensor([1.0])
    Adam([w], 0.1, weight_decay=0.5).apply([torch.tensor([1.5])])
    assert w.item() == pytest.approx(0.9)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_steps_are_torchs_to_the_bit_also_where_some_get_no_gradient_and_after_a_resume(decay: float) -> None:
    ours, theirs = twins()
    adam = Adam(ours, 0.003, decay)
    other = torch.optim.Adam(theirs, 0.003, weight_decay=decay)
    stream = torch.Generator().manual_seed(1)
    for step in range(6):
        gradients: list[Tensor | None] = [torch.randn(p.shape, generator=stream) for p in ours]
        if step in (0, 3):
            gradients[1] = None
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        if step == 4:
            resumed = Adam(ours, 0.003, decay)
            resumed.load_state_dict(adam.state_dict())
            adam = resumed
        adam.apply(gradients)
        other.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    written, known = adam.state_dict()["state"], other.state_dict()["state"]
    assert written.keys() == known.keys()
    assert all(torch.equal(written[k][name], known[k][name]) for k in known for name in known[k])
    assert all(written[k]["exp_avg"].stride() == known[k]["exp_avg"].stride() for k in known)


def test_torchs_memory_is_taken_over() -> None:
    ours, theirs = twins()
    other = torch.optim.Adam(theirs, 0.1)
    for parameter in theirs:
        parameter.grad = torch.ones_like(parameter)
    other.step()
    adam = Adam(theirs, 0.1)
    adam.load_state_dict(other.state_dict())
    assert adam.steps == dict.fromkeys(range(4), 1)
    assert not torch.equal(ours[0], theirs[0])
