"""DP-SGD as a swap of the learner: per-sample gradients, clipped and noised, by opacus.

A `SampleGuard` lives as long as one turn of one client. Learners it makes take their private gradient from opacus'
per-sample gradients (clipped to `clip`, summed, noised with σ·clip, divided by the expected batch size) and add the
gradient of free losses as it is. Batches it draws are Poisson samples, as the accountant assumes.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import UsageError
from fedstill.parts.gradients import gradients
from fedstill.parts.learner import Learner, Stepper
from fedstill.parts.noise import gaussian, stream_of

IN_PLACE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish, nn.Hardtanh, nn.Hardswish,
    nn.modules.dropout._DropoutNd,
)  # fmt: skip
"""Layers that may be told to write over their input."""


class SampleGuard:
    """Draws Poisson batches and makes learners that clip and noise; counts what was released.

    Args:
        noise: σ, in units of the clipping norm.
        clip: the norm that each sample's gradient is brought to, where it is longer.
        key: of this turn's two streams, of noise and of batches; whoever knows it can take the noise away.
        secret: nobody else knows the key, so the noise is made to withstand who looks at its last bits.
    """

    def __init__(self, noise: float, clip: float, key: bytes, secret: bool = True) -> None:
        self.noise = noise
        self.clip = clip
        self.secret = secret
        self.released = 0
        self.batches_drawn = 0
        self.blank = False
        self.expected = 1.0
        self.noise_stream = stream_of(key, "noise")
        self.batch_stream = stream_of(key, "batches")

    def learner(self, module: nn.Module, optimizer: Stepper) -> Learner:
        """A learner whose private steps are clipped and noised."""
        return PrivateLearner(module, optimizer, self)

    def batches(self, count: int, size: int, steps: int) -> Iterator[Tensor]:
        """Each sample is in a batch with probability `size`/`count`, by itself.

        A batch may be empty. Losses cannot take that, so sample 0 stands in and its gradient counts as nothing.
        """
        rate = min(1.0, size / count) if count else 0.0
        self.expected = rate * count
        for _ in range(steps if count else 0):
            chosen = torch.from_numpy((self.batch_stream.random(count) < rate).nonzero()[0])
            self.batches_drawn += 1
            self.blank = not len(chosen)
            yield torch.zeros(1, dtype=torch.int64) if self.blank else chosen


class PrivateLearner(Learner):
    """A learner whose steps tell of each of the client's samples no more than clipping and noise allow."""

    private = True

    def __init__(self, module: nn.Module, optimizer: Stepper, guard: SampleGuard) -> None:
        super().__init__(module, optimizer)
        wrong = refusal(module)
        if wrong:
            raise UsageError(f"private: {wrong}")
        for part in module.modules():
            if isinstance(part, IN_PLACE):
                part.inplace = False  # hooks hand out views, which may not be written over; the numbers stay the same
        self.guard = guard
        self.hooks = _hooks(module)
        self.hooks.disable_hooks()
        self._shields: dict[tuple[int, ...], Any] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, what the client's samples do in the module is seen sample by sample."""
        self.hooks.enable_hooks()
        try:
            yield
        finally:
            self.hooks.disable_hooks()

    def step(
        self,
        private: Tensor | None = None,
        free: Tensor | None = None,
        shift: Sequence[Tensor] | None = None,
        pull: float = 1.0,
    ) -> None:
        """One optimiser step: the private gradient clipped and noised, the free one as it is."""
        total: list[Tensor | None] = [None] * len(self.parameters)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")  # the first layer has no inputs
            if free is not None:
                total = list(gradients(free, self.parameters))
            if private is not None:
                total = [_sum(a, b) for a, b in zip(self._noisy(private), total, strict=True)]
        if shift is not None:
            moved = zip(self.parameters, total, shift, strict=True)
            total = [_sum(g, pull * s) if p.requires_grad else None for p, g, s in moved]
        self.apply(total)

    def _noisy(self, loss: Tensor) -> list[Tensor | None]:
        """The mean over the expected batch of clipped per-sample gradients, with noise; None where none flows."""
        try:
            with self.watched():
                gradients(loss, self.parameters)
        except (ValueError, IndexError) as error:  # opacus misses what it should have seen in the forward pass
            raise RuntimeError("a private loss of samples that passed the module unwatched") from error
        seen = [getattr(p, "grad_sample", None) is not None for p in self.parameters]  # never of a frozen one
        used = [p for p, known in zip(self.parameters, seen, strict=True) if known]
        if self.guard.blank:
            for p in used:
                p.grad_sample.zero_()
        shield = self._shield(used)
        shield.pre_step()
        self.guard.released += 1
        noisy = [p.grad.detach().clone() if known else None for p, known in zip(self.parameters, seen, strict=True)]
        shield.zero_grad(set_to_none=True)
        return noisy

    def _shield(self, used: list[Any]) -> Any:
        """Opacus' optimiser over the parameters that the private loss reaches: it clips and noises; it never steps."""
        key = tuple(map(id, used))
        if key not in self._shields:
            self._shields[key] = _shield(used, self.guard)
        return self._shields[key]


def _shield(parameters: list[Any], guard: SampleGuard) -> Any:
    from opacus.optimizers import DPOptimizer

    class KeyedNoise(DPOptimizer):  # type: ignore[misc]
        """Its noise comes from the guard's stream, which has a key of 256 bits, not from torch's generator."""

        def add_noise(self) -> None:
            std = self.noise_multiplier * self.max_grad_norm
            for p in self.params:
                noise = gaussian(guard.noise_stream, std, p.numel(), guard.secret) if std else torch.zeros(p.numel())
                p.grad = p.summed_grad.view_as(p) + noise.view_as(p).to(p.device, p.dtype)

    return KeyedNoise(
        torch.optim.SGD(parameters, lr=1.0),
        noise_multiplier=guard.noise,
        max_grad_norm=guard.clip,
        expected_batch_size=guard.expected,  # n·q, which need not be whole
    )


def _hooks(module: nn.Module) -> Any:
    """Opacus' hooks on a module: a backward pass leaves every sample's gradient in `grad_sample` of each parameter."""
    from opacus.grad_sample import GradSampleHooks

    class ContiguousHooks(GradSampleHooks):  # type: ignore[misc]
        """Its convolutions read activations as if they were contiguous, and are wrong in any other memory layout."""

        def capture_activations_hook(self, module: nn.Module, inputs: Any, output: Any) -> None:
            super().capture_activations_hook(module, [t.contiguous() for t in inputs], output)

    return ContiguousHooks(module, loss_reduction="mean")


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def refusal(module: nn.Module) -> str | None:
    """Why a module cannot be trained with per-sample gradients, if so: the part of it that is in the way."""
    try:
        from opacus.validators import ModuleValidator
    except ImportError:
        return "needs opacus and dp-accounting; pip install 'fedstill[privacy]'"
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return (
                f"{name} is a {type(part).__name__}, which mixes samples; take a -gn model (see `fedstill ls models`)"
            )
    faults = ModuleValidator.validate(module, strict=False)
    return None if not faults else str(faults[0]).splitlines()[0]
