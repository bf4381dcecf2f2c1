"""Learners: a module and the optimiser that trains it, for the length of one turn.

Inside a turn the module changes in place, which is what PyTorch does fastest; across turns only records travel:
`Learner.weights` and `Learner.memory` are copies.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedstill.core.method import Env
from fedstill.core.record import State
from fedstill.core.value import Value, setting
from fedstill.data.samples import Samples, batches
from fedstill.parts.adam import Adam
from fedstill.parts.gradients import gradients
from fedstill.parts.losses import cross_entropy
from fedstill.parts.perceptron import Perceptron
from fedstill.parts.sgd import Sgd

M = TypeVar("M", bound=nn.Module)
Memory = Mapping[str, Mapping[str, Tensor]]
"""An optimiser's state: for each parameter (by its place), its named tensors."""


Stepper = torch.optim.Optimizer | Sgd | Adam
"""Who takes a learner's steps."""


class Learner:
    """A module in training: `step(loss)` makes it better at what the loss says.

    A loss is `private` where it is the mean over a batch of the client's own samples, one term a sample. It is `free`
    where it knows of them only by the model itself: imagined or public samples, a distance from other weights.
    """

    private = False
    """Are the client's samples protected? Then they pass the module apart from all others (`__call__`, `freely`)."""

    def __init__(self, module: nn.Module, optimizer: Stepper) -> None:
        self.module = module
        self.optimizer = optimizer
        self.parameters: list[Any] = (
            optimizer.parameters
            if isinstance(optimizer, Sgd | Adam)
            else [p for group in optimizer.param_groups for p in group["params"]]
        )

    def __call__(self, x: Tensor) -> Tensor:
        """The module's output on the client's own samples."""
        with self.watched():
            return self.module(x)  # type: ignore[no-any-return]

    def freely(self, x: Tensor) -> Tensor:
        """The module's output on samples that are not the client's own: imagined or public ones."""
        return self.module(x)  # type: ignore[no-any-return]

    def watched(self) -> AbstractContextManager[None]:
        """Inside, parts of the module may be called on the client's own samples, for a private loss."""
        return nullcontext()

    def step(
        self,
        private: Tensor | None = None,
        free: Tensor | None = None,
        shift: Sequence[Tensor] | None = None,
        pull: float = 1.0,
    ) -> None:
        """One optimiser step down the gradient of `private` + `free`, plus `pull` times `shift` for each parameter.

        No other module's parameters get any gradient.
        """
        both = [loss for loss in (private, free) if loss is not None]
        slopes = gradients(both[0] if len(both) == 1 else both[0] + both[1], self.parameters)
        self.apply(slopes if shift is None else shifted(slopes, shift, pull))

    def apply(self, gradients: Sequence[Tensor | None]) -> None:
        """One optimiser step with these gradients."""
        if isinstance(self.optimizer, Sgd | Adam):
            self.optimizer.apply(gradients)
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    @property
    def weights(self) -> State:
        """A copy of the module's parameters and buffers."""
        return weights_of(self.module)

    @property
    def memory(self) -> Memory:
        """A copy of the optimiser's state."""
        state = self.optimizer.state_dict()["state"]
        return {
            str(place): {name: torch.as_tensor(value).detach().cpu().clone() for name, value in entry.items()}
            for place, entry in state.items()
        }

    def recall(self, memory: Memory) -> "Learner":
        """Give the optimiser a copy of the state it had."""
        if memory:
            blank = self.optimizer.state_dict()
            state = {
                int(place): {name: tensor.clone() for name, tensor in entry.items()} for place, entry in memory.items()
            }
            self.optimizer.load_state_dict({**blank, "state": state})
        return self


@torch.no_grad()
def shifted(slopes: Sequence[Tensor | None], shift: Sequence[Tensor], pull: float) -> Sequence[Tensor | None]:
    """Every gradient plus `pull` times its shift; a parameter that the loss does not reach stays without."""
    reached = [(slope, move) for slope, move in zip(slopes, shift, strict=True) if slope is not None]
    moved = iter(torch._foreach_add([slope for slope, _ in reached], [move for _, move in reached], alpha=pull))
    return [None if slope is None else next(moved) for slope in slopes]


class Guard(Protocol):
    """Who stands between a learner and a client's own samples, for the length of a turn; see `parts.privacy`."""

    def learner(self, module: nn.Module, optimizer: Stepper) -> Learner:
        """A learner whose steps tell of each sample no more than they may."""

    def batches(self, count: int, size: int, steps: int) -> Iterator[Tensor]:
        """Index tensors over `count` samples, drawn as the guarantee asks, `size` of them expected in each."""


def weights_of(module: nn.Module) -> State:
    """A copy of a module's parameters and buffers, on the CPU."""
    return {name: tensor.cpu().clone() for name, tensor in module.state_dict().items()}


def parameter_names(env: Env) -> list[str]:
    """The global model's parameters, without buffers: what a gradient moves."""
    return [name for name, _ in env.module().named_parameters()]


def frozen(module: M) -> M:
    """The module as a teacher: evaluation mode, and no gradient for its own weights (inputs still get theirs)."""
    return module.eval().requires_grad_(False)


Optimizer = Literal["sgd", "adam"]


def optimizer_of(
    name: Optimizer, module: nn.Module, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> Stepper:
    """An optimiser by name."""
    if name == "adam":
        return Adam(module.parameters(), lr, weight_decay)
    return Sgd(module.parameters(), lr, momentum, weight_decay)


@dataclass(frozen=True)
class LocalTraining(Value):
    """How a client trains: fields shared by the methods, and the learner and batches they describe."""

    private_learners: ClassVar[int] = 0
    """Learners that step on each batch of private samples, for methods whose uploads come of their steps alone.

    0: nobody has looked whether the method can train with per-sample noise, so it is refused.
    """
    lr: float = setting(0.01, gt=0, doc="learning rate of the clients")
    epochs: int = setting(10, ge=1, doc="local epochs in a round (E)")
    local_steps: int | None = setting(None, ge=1, doc="local steps in a round, instead of epochs")
    batch: int = setting(64, ge=1, doc="batch size (B)")
    optimizer: Optimizer = setting("sgd", doc="sgd or adam")
    momentum: float = setting(0.0, ge=0, lt=1, doc="momentum of sgd")
    weight_decay: float = setting(0.0, ge=0, doc="L2 penalty")
    lr_decay: float = setting(1.0, gt=0, le=1, doc="factor on the learning rate after every round")

    def rate(self, env: Env) -> float:
        """The learning rate in this round."""
        return self.lr * self.lr_decay**env.round

    def learner(self, env: Env, module: nn.Module) -> Learner:
        """A learner for a module with this optimiser and rate."""
        made = optimizer_of(self.optimizer, module.train(), self.rate(env), self.momentum, self.weight_decay)
        guard: Guard | None = env.guard
        return Learner(module, made) if guard is None else guard.learner(module, made)

    def steps(self, count: int) -> int:
        """How many batches a turn on `count` samples has."""
        return self.local_steps or self.epochs * math.ceil(count / self.batch)

    def private_steps(self, env: Env, count: int) -> int:
        """How many batches of private samples a turn on `count` samples has; every private learner steps on each."""
        return self.steps(count)

    def mixing(self) -> str | None:
        """Which setting makes a loss that is no mean over single samples, if one does."""
        return None

    def batches(self, env: Env, data: Samples, module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels, batch by batch, for the epochs (or steps) of one turn of this module."""
        guard: Guard | None = env.guard
        if guard is not None:
            return loaded(env, data, guard.batches(len(data), self.batch, self.steps(len(data))))
        epochs = self.epochs if self.local_steps is None else self.local_steps
        index = batches(len(data), self.batch, epochs, env.stream("batches"), drop_single=refuses_one(module))
        return loaded(env, data, itertools.islice(index, self.local_steps))

    def train(self, env: Env, learner: Learner, data: Samples) -> int:
        """A turn's epochs (or steps) on a client's own samples by cross-entropy; how many steps there were."""
        steps = 0
        perceptron = None if learner.private else Perceptron.of(learner.module, learner.parameters)
        for x, y in self.batches(env, data, learner.module):
            if perceptron is None:
                learner.step(cross_entropy(learner(x), y))
            else:
                learner.apply(perceptron.gradients(x, y))
            steps += 1
        return steps


def refuses_one(module: nn.Module) -> bool:
    """Can the module not be trained on a batch of one?"""
    return any(isinstance(part, nn.BatchNorm1d) for part in module.modules())


def loaded(env: Env, data: Samples, index: Iterator[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The images and labels at each index, on the run's device; normalised once, not once per epoch."""
    images, labels = data.inputs().to(env.device), data.y.to(env.device)
    for chosen in index:
        at = chosen.to(env.device)
        yield images.index_select(0, at), labels.index_select(0, at)


CHUNK = 512
"""Images that pass a model at once where no gradient is wanted."""


def predict(module: nn.Module, images: Tensor) -> Tensor:
    """The module's logits on many images, in evaluation mode and without gradients."""
    mode = module.training
    module.eval()
    with torch.no_grad():
        out = torch.cat([module(part) for part in torch.split(images, CHUNK)])
    module.train(mode)
    return out


def features_of(module: Any, images: Tensor) -> Tensor:
    """The module's features of many images, without gradients; it is in evaluation mode afterwards."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module.features(part) for part in torch.split(images, CHUNK)])


def minibatches(
    env: Env, purpose: str, x: Tensor, *rest: Tensor, size: int, epochs: int = 1, drop_single: bool = False
) -> Iterator[Any]:
    """Shuffled batches of aligned tensors."""
    for chosen in batches(len(x), size, epochs, env.stream(purpose), drop_single=drop_single):
        yield (x[chosen], *(other[chosen] for other in rest))
