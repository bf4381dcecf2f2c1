"""Copies of modules: as deepcopy makes them, sharing nothing that can change."""

import copy

import pytest
import torch
from smallest import same_bits
from torch import nn

from fedstill.core.prototypes import Prototypes, duplicate, loaded, slots
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


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet8", "cnn1"])
def test_a_copy_with_other_weights_is_what_loading_them_gives(name: str) -> None:
    model, other = (initial(name, Image((3, 32, 32)), 10, seed) for seed in (1, 2))
    weights = {key: tensor.contiguous() for key, tensor in other.state_dict().items()}
    fast, slow = loaded(model, slots(model), weights), copy.deepcopy(model)
    slow.load_state_dict(weights)
    assert same_bits(dict(fast.state_dict()), dict(slow.state_dict()))
    assert [(p.stride(), p.requires_grad) for p in fast.parameters()] == [
        (p.stride(), p.requires_grad) for p in slow.parameters()
    ]
    with torch.no_grad():
        next(fast.parameters()).zero_()
    assert not same_bits(weights, dict(fast.state_dict()))  # the copy's weights are its own


def test_weights_that_do_not_fit_are_refused_and_tied_ones_stay_tied() -> None:
    model = Odd()
    made = loaded(model, slots(model), {name: torch.ones_like(t) for name, t in model.state_dict().items()})
    assert made.one.weight is made.two.weight
    assert float(made.one.weight.detach().sum()) == 9
    with pytest.raises(RuntimeError, match=r"Missing key.*two\.bias"):
        loaded(model, slots(model), {name: t for name, t in model.state_dict().items() if name != "two.bias"})
    with pytest.raises(RuntimeError, match="size mismatch"):
        loaded(model, slots(model), {**model.state_dict(), "one.bias": torch.ones(4)})


def test_a_part_that_reads_its_weights_in_a_way_of_its_own_is_asked() -> None:
    class Doubling(nn.Linear):
        def _load_from_state_dict(self, state: dict[str, torch.Tensor], prefix: str, *rest: object) -> None:
            super()._load_from_state_dict({name: 2 * t for name, t in state.items()}, prefix, *rest)  # type: ignore[arg-type]

    model = nn.Sequential(Doubling(2, 1))
    assert slots(model) is None
    made = loaded(model, None, {"0.weight": torch.ones(1, 2), "0.bias": torch.ones(1)})
    assert made[0].weight.tolist() == [[2.0, 2.0]]
