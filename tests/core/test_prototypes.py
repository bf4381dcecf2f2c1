"""Copies of modules: as deepcopy makes them, sharing nothing that can change."""

import copy

import pytest
import torch
from smallest import same_bits
from torch import nn

from fedstill.core.prototypes import Prototypes, duplicate
from fedstill.data.kinds import Image
from fedstill.models import initial, models


class Odd(nn.Module):
    """Tied weights, a buffer that is not saved, a list of its own, and a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.calls: list[str] = []
        self.one.register_forward_hook(self.note)

    def note(self, *_: object) -> None:
        self.calls.append("one")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.two(self.one(x))


def test_a_copy_shares_no_state_and_keeps_what_is_tied() -> None:
    first = Odd()
    second = duplicate(first)
    assert second.two.weight is second.one.weight is not first.one.weight
    second(torch.ones(1, 3))
    assert (first.calls, float(first.seen)) == ([], 0.0)
    assert (second.calls, float(second.seen)) == (["one"], 1.0)
    with torch.no_grad():
        second.one.weight.zero_()
    assert first.one.weight.detach().abs().sum() > 0


def test_a_module_that_says_how_it_is_copied_is_asked() -> None:
    class Proud(nn.Module):
        def __deepcopy__(self, memo: object) -> "Proud":
            made = Proud()
            made.asked = True
            return made

        asked = False

    assert duplicate(nn.Sequential(Proud()))[0].asked


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet8", "cnn1"])
def test_a_copy_of_a_model_is_what_deepcopy_gives(name: str) -> None:
    model = initial(name, Image((3, 32, 32)), 10, 1)
    fast, slow = duplicate(model), copy.deepcopy(model)
    assert same_bits(dict(fast.state_dict()), dict(slow.state_dict()))
    assert [(n, type(m), m.training) for n, m in fast.named_modules()] == [
        (n, type(m), m.training) for n, m in slow.named_modules()
    ]
    assert [p.stride() for p in fast.parameters()] == [p.stride() for p in slow.parameters()]
    x = torch.ones(2, 3, 32, 32)
    assert torch.equal(fast.eval()(x), slow.eval()(x))
    assert name in models


def test_one_prototype_serves_all_clients_of_an_architecture() -> None:
    made: list[tuple[int | None, int]] = []

    def make(client: int | None, seed: int) -> nn.Module:
        made.append((client, seed))
        return nn.Linear(2 if client == 1 else 3, 1)

    build = Prototypes(lambda client: "small" if client == 1 else "large", make)  # type: ignore[arg-type]
    assert build.form(0)["weight"] is build.form(None)["weight"]
    assert build(0, None).weight.data_ptr() != build(2, None).weight.data_ptr()  # type: ignore[union-attr]
    assert build(1, None).weight.shape == (1, 2)
    assert made == [(0, 0), (1, 0)]
