"""What every method does with a module of one's own that is frozen in part, or has no features."""

from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method
from torch import Tensor, nn

from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.core.shelf import Storage
from fedstill.experiment.ready import load_model
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage

EVERY = sorted(methods)
LITTLE: dict[str, Any] = {"samples": 200, "clients": 3, "active": 1.0, "rounds": 2}


class Pretrained(nn.Module):
    """Transfer learning: the first layer stays as it is, and of the second the bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.body.requires_grad_(False)
        self.middle.bias.requires_grad_(False)

    def features(self, x: Tensor) -> Tensor:
        return self.middle(self.body(x.flatten(1)).relu()).relu()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Bare(nn.Module):
    """Logits, and nothing that they are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(64, 10), nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).relu() * self.scale  # type: ignore[no-any-return]


def stays_and_moves(plan: Any, module: nn.Module, runs: Path) -> None:
    assert not any(row["missing"] for row in start(plan, out=runs, name="x").rows)
    after = load_model(runs / "x", model=module).classifier.state_dict()
    moved = {name for name, value in module.state_dict().items() if not torch.equal(after[name], value)}
    assert moved == {"middle.weight", "head.weight", "head.bias"}


@pytest.mark.parametrize("name", EVERY)
def test_what_is_frozen_stays_as_it_is_and_the_rest_is_trained(name: str, runs: Path) -> None:
    torch.manual_seed(0)
    module = Pretrained()
    settings = {"weight_decay": 0.1} if name in ("fedavg", "scaffold") else {}
    stays_and_moves(small_experiment(small_method(name, **settings), model=module, **LITTLE), module, runs)


@pytest.mark.parametrize("name", ["fedavg", "fedkf", "scaffold", "feddyn"])
def test_what_is_frozen_stays_under_privacy_too(name: str, runs: Path) -> None:
    """Its shift, where a method has one, would be decayed with the weights."""
    pytest.importorskip("opacus")
    torch.manual_seed(0)
    module = Pretrained()
    plan = small_experiment(
        small_method(name, weight_decay=0.1),
        model=module,
        wrappers=[{"name": "private-samples", "epsilon": 8.0}],
        **LITTLE,
    )
    stays_and_moves(plan, module, runs)


@pytest.mark.parametrize("name", EVERY)
def test_a_method_that_asks_for_features_refuses_a_model_without_them_before_the_first_round(name: str) -> None:
    plan = small_experiment(small_method(name), model=Bare, **LITTLE)
    if methods[name].needs_features:
        with pytest.raises(UsageError, match="model = Bare: has no features; end it in nn"):
            stage(plan, Storage())
    else:
        assert not any(row["missing"] for row in start(plan, out=None).rows)
