"""Inputs that were normalised by one site's means and deviations, as another site's model knows them."""

from dataclasses import replace

import torch
from torch import Tensor

from fedstill.core.kind import Kind
from fedstill.data.kinds import Image, Series, Table
from fedstill.data.kinds.table import FAR


def same_form(one: Kind, other: Kind) -> bool:
    """Do two kinds of data differ in means and deviations, and in which numbers may be missing, at most?"""
    if isinstance(one, Table) and isinstance(other, Table):
        return replace(other, mean=one.mean, std=one.std, missing=one.missing) == one
    if (isinstance(one, Series) and isinstance(other, Series)) or (isinstance(one, Image) and isinstance(other, Image)):
        return replace(other, mean=one.mean, std=one.std) == one
    return one == other


def renormalised(inputs: Tensor, by: Kind, to: Kind) -> Tensor:
    """Inputs normalised as kind `by` does it, as kind `to` of the same form does it; gradients pass.

    >>> by, to = (Series((1, 2), (mean,), (std,)) for mean, std in ((10.0, 2.0), (14.0, 4.0)))
    >>> renormalised(torch.tensor([[[0.0, 1.0]]]), by, to).tolist()     # 10 and 12 in the units of the data
    [[[-1.0, -0.5]]]
    """
    if isinstance(by, Table) and isinstance(to, Table):
        return _rows(inputs, by, to)
    if isinstance(by, Series | Image) and isinstance(to, Series | Image):
        over = (-1, *(1,) * (inputs.ndim - 2))
        return _affine(inputs, by, to, over)
    return inputs


def _affine(inputs: Tensor, by: Table | Series | Image, to: Table | Series | Image, over: tuple[int, ...]) -> Tensor:
    mean, std, own_mean, own_std = (
        torch.tensor(values, device=inputs.device).view(over) for values in (by.mean, by.std, to.mean, to.std)
    )
    return (inputs * std + mean - own_mean) / own_std


def _rows(inputs: Tensor, by: Table, to: Table) -> Tensor:
    """Numbers in the other units (a missing one is the mean: 0), marks for those that may be missing, categories."""
    if not by.numeric:
        return inputs
    count, marked = len(by.numeric), len(by.missing)
    numbers, marks, categories = torch.split(inputs, [count, marked, inputs.shape[1] - count - marked], 1)
    absent = dict(zip(by.missing, marks.unbind(1), strict=True))
    nothing = torch.zeros(len(inputs), device=inputs.device)
    there = 1 - torch.stack([absent.get(name, nothing) for name in by.numeric], 1)
    moved = _affine(numbers, by, to, (-1,)).clamp(-FAR, FAR) * there
    return torch.cat([moved, *(absent.get(name, nothing)[:, None] for name in to.missing), categories], 1)
