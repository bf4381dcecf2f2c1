"""Logit calibration: rare classes of a client get a margin, so that frequent ones do not push them away."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot


def margins(counts: Tensor, tau: float) -> Tensor:
    """τ n_c^(−1/4) of each class; infinite for a class without samples, and 0 for all where τ = 0.

    >>> margins(torch.tensor([16, 1, 0]), 2.0).tolist()
    [1.0, 2.0, inf]
    """
    return tau * counts.double().pow(-0.25).float() if tau else torch.zeros(len(counts))


def log_shares(counts: Tensor, tau: float, smoothing: float) -> Tensor:
    """τ log((1 − u) n_c/n + u/C) of each class, u the `smoothing`: what calibration adds to the logits.

    A class the client lacks keeps the share u/C: it is pushed away less, but it is not silenced.

    >>> log_shares(torch.tensor([3, 1, 0, 0]), 1.0, 0.5).exp().tolist()           # ½ of ¾, ¼, 0, 0, and ⅛ each
    [0.5, 0.25, 0.125, 0.125]
    """
    shares = counts.double() / counts.sum().clamp_min(1)
    return (tau * ((1 - smoothing) * shares + smoothing / len(counts)).log()).float()


def lacking(counts: Tensor, smoothing: float) -> float:
    """Σ_c max(0, 1 − C n_c / (u n)) / (C − 1): the part of all other classes that a client lacks.

    A class is there from a share of u/C on; below, it lacks in proportion. Who has no samples lacks all others, too.

    >>> lacking(torch.tensor([30, 10, 10, 10]), 0.2), lacking(torch.tensor([60, 0, 0, 0]), 0.2)
    (0.0, 1.0)
    >>> round(lacking(torch.tensor([20, 19, 1, 0]), 0.2), 6)        # 1 of 40 is half of .2/4, 0 is nothing: 1.5 of 3
    0.5
    """
    shares = counts.double() / counts.sum().clamp_min(1)
    return min(1.0, float((1 - len(counts) * shares / smoothing).clamp_min(0).sum() / max(1, len(counts) - 1)))


def calibrated_cross_entropy(logits: Tensor, y: Tensor, margin: Tensor, others_only: bool = False) -> Tensor:
    """−log of e^(f_y − Δ_y) / Σ_c e^(f_c − Δ_c), mean over the batch; classes of infinite margin take no part.

    `others_only` leaves the sample's own class out of the sum: log Σ_{c≠y} e^(f_c − Δ_c) − (f_y − Δ_y), which has no
    lower bound.
    """
    shifted = logits - margin
    if not others_only:
        return cross_entropy(shifted, y)
    own = one_hot(y, logits.shape[-1]).bool()
    against = shifted.masked_fill(own, -torch.inf)
    rivals = torch.isfinite(against).any(-1)  # a client with one class has nothing to tell it from
    return (against[rivals].logsumexp(-1) - shifted[own][rivals]).sum() / len(y)
