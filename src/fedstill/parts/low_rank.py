"""Low-rank changes of weights: every matrix by as many singular values as hold a given share of its energy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, State, carries, record
from fedstill.parts.gather import Everyone, Gather, Update, weights_in

Factors = Mapping[str, Mapping[str, Tensor]]
"""By name of a tensor: `left` and `right`, whose product it is, or the `whole` of it where that is smaller."""


@record
class LowRank:
    """What leaves a client: the change of a model's weights, by few factors; their number varies."""

    factors: Factors = carries(Carries.COMPRESSED, varies=True)


def numbers(factors: Factors) -> int:
    """How many numbers these factors are."""
    return sum(part.numel() for parts in factors.values() for part in parts.values())


def factored(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    """left · right ≈ matrix, of the least rank K with Σ_{i ≤ K} σ_i² ≥ energy · Σ σ_i² (at least 1).

    >>> left, right = factored(torch.diag(torch.tensor([3.0, 1.0])), 0.9)  # 9 of 10: the first alone will do
    >>> left.shape[1], (left @ right).abs().round().tolist()
    (1, [[3.0, 0.0], [0.0, 0.0]])
    """
    u, sigma, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    held = sigma.square().cumsum(0)
    rank = int((held < energy * held[-1] * (1 - 1e-12)).sum()) + 1
    return (u[:, :rank] * sigma[:rank]).to(matrix.dtype), v[:rank].to(matrix.dtype)


def compressed(change: State, energy: float) -> Factors:
    """Factors of every tensor of two or more dimensions (rows are its first), where they are smaller than it is."""
    out: dict[str, Mapping[str, Tensor]] = {}
    for name, tensor in change.items():
        out[name] = {"whole": tensor}
        if tensor.dim() > 1 and tensor.is_floating_point():
            left, right = factored(tensor.flatten(1), energy)
            if left.numel() + right.numel() < tensor.numel():
                out[name] = {"left": left, "right": right}
    return out


def restored(factors: Factors, form: State) -> State:
    """The change that factors stand for, in the shapes of `form`."""
    return {n: f["whole"] if "whole" in f else (f["left"] @ f["right"]).view(form[n].shape) for n, f in factors.items()}


def misshapen(factors: Factors, form: State) -> str | None:
    """What is wrong with factors that are to stand for a change of weights of this form, if anything."""
    if factors.keys() != form.keys():
        return "factors: not of this model's tensors"
    for name, parts in factors.items():
        wanted = form[name]
        if set(parts) == {"whole"}:
            fits = parts["whole"].shape == wanted.shape
        elif set(parts) == {"left", "right"} and wanted.dim() > 1:
            left, right = parts["left"], parts["right"]
            sides = tuple(wanted.flatten(1).shape)
            fits = left.dim() == right.dim() == 2 and (len(left), right.shape[1]) == sides
            fits = fits and left.shape[1] == len(right)
        else:
            fits = False
        if not fits:
            return f"factors of {name}: do not make a tensor of shape {tuple(wanted.shape)}"
    return None


def let_through(
    env: Env, gather: Gather, memory: Any, weights: State, replies: Sequence[Reply[Any]]
) -> tuple[Any, list[State], list[float]]:
    """The gather's memory, and the changes of `weights` and samples that it lets through.

    It sees the whole model that each reply's factors stand for.
    """
    changes = [restored(r.upload.factors, weights) for r in replies]
    if isinstance(gather, Everyone):
        return memory, changes, [float(r.samples) for r in replies]
    models = []
    for reply, change in zip(replies, changes, strict=True):
        models.append(replace(reply, upload=Update({n: w + change[n] for n, w in weights.items()})))
    memory, kept = gather.gather(env, memory, models)
    steps: list[State] = [{n: w - weights[n] for n, w in weights_in(r).items()} for r in kept]
    return memory, steps, [float(r.samples) for r in kept]
