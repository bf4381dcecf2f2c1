"""Our steps are torch.optim.SGD's, to the bit."""

import pytest
import torch
from torch import Tensor

from fedstill.parts.sgd import Sgd


def twins() -> tuple[list[Tensor], list[Tensor]]:
    stream = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=stream) for shape in ((3, 5), (7,), (2, 3, 3, 3))]
    return first, [tensor.clone() for tensor in first]


def test_momentum_and_decay_by_hand() -> None:
    """w = 1, η = .1, μ = .5, λ = .2. First g = 1: v = 1 + .2·1 = 1.2, w = 1 − .12 = .88.

    Then g = 0: v = .5·1.2 + .2·.88 = .776, w = .88 − .0776 = .8024.
    """
    w = torch.tensor([1.0])
    sgd = Sgd([w], 0.1, momentum=0.5, weight_decay=0.2)
    sgd.apply([torch.tensor([1.0])])
    assert w.item() == pytest.approx(0.88)
    sgd.apply([torch.tensor([0.0])])
    assert w.item() == pytest.approx(0.8024)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_steps_are_torchs_to_the_bit_also_where_some_get_no_gradient(momentum: float, decay: float) -> None:
    ours, theirs = twins()
    sgd = Sgd(ours, 0.03, momentum, decay)
    other = torch.optim.SGD(theirs, 0.03, momentum=momentum, weight_decay=decay)
    stream = torch.Generator().manual_seed(1)
    for step in range(5):
        gradients: list[Tensor | None] = [torch.randn(p.shape, generator=stream) for p in ours]
        if step in (0, 3):
            gradients[1] = None
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        sgd.apply(gradients)
        other.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_it_goes_on_from_a_copy_of_its_state() -> None:
    (w,), (again,) = [t[:1] for t in twins()]
    first = Sgd([w], 0.1, momentum=0.9)
    first.apply([torch.ones_like(w)])
    again.copy_(w)
    second = Sgd([again], 0.1, momentum=0.9)
    second.load_state_dict(first.state_dict())
    first.apply([torch.ones_like(w)])
    second.apply([torch.ones_like(w)])
    assert torch.equal(w, again)
    assert second.velocity[0] is not first.velocity[0]
