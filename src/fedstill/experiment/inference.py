"""What an attacker reads off numbers: how well members are told from others, label shares, a sample from a step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from fedstill.core.record import State

Scores = NDArray[np.float64]
Interval = dict[str, float]
"""`value`, and `low` and `high`: where 95 % of resampled values lie."""


def auc(members: Scores, others: Scores) -> float:
    """The probability that a member's score is above that of another; ties count half, .5 is guessing.

    >>> auc(np.array([3.0, 1.0]), np.array([2.0, 0.0]))     # 3 > 2, 3 > 0, 1 < 2, 1 > 0
    0.75
    """
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / (len(members) * len(others)))


def tpr(members: Scores, others: Scores, fpr: float = 0.01) -> float:
    """The share of members above the score that at most `fpr` of the others exceed.

    >>> tpr(np.array([9.0, 5.0, 1.0, 0.0]), np.array([4.0, 3.0, 2.0, 1.0]), fpr=0.25)  # one other may be above 3
    0.5
    """
    allowed = int(fpr * len(others))
    limit = np.sort(others)[::-1][allowed]
    return float((members > limit).mean())


def bootstrap(statistic: Callable[..., float], *samples: Scores, stream: np.random.Generator) -> Interval:
    """A statistic of one or more samples, with its 95 % interval over 200 resamples of each."""
    estimates = [statistic(*(stream.choice(s, len(s)) for s in samples)) for _ in range(200)]
    low, high = np.quantile(estimates, [0.025, 0.975])
    return {"value": statistic(*samples), "low": float(low), "high": float(high)}


def losses(module: nn.Module, inputs: Tensor, labels: Tensor, chunk: int = 500) -> Tensor:
    """The cross-entropy of each sample."""
    module.eval()
    with torch.no_grad():
        parts = zip(torch.split(inputs, chunk), torch.split(labels, chunk), strict=True)
        return torch.cat([cross_entropy(module(x), y, reduction="none") for x, y in parts]).double()


def odds(loss: Tensor) -> Scores:
    """log(p/(1 − p)) of the true class's probability p = e^−loss: nearly normal over training runs (LiRA).

    >>> odds(torch.tensor([np.log(2.0), np.log(4.0)], dtype=torch.float64)).round(3).tolist()   # p = 1/2, 1/4
    [0.0, -1.099]
    """
    p = torch.exp(-loss).clamp(1e-12, 1 - 1e-12)
    return (p.log() - (1 - p).log()).numpy()


def likelihood_ratio(target: Scores, shadows: Scores, inside: NDArray[np.bool_]) -> Scores:
    """log of how much likelier each sample's score is of a model that has seen it than of one that has not.

    Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles. S&P 2022; with one
    variance for all samples, as they advise where shadow models are few.

    Args:
        target: the attacked model's scores, one a sample.
        shadows: the shadow models' scores, shadows × samples.
        inside: which samples each shadow was trained on; each sample is in some and not in others.
    """
    means, spreads = [], []
    for seen in (inside, ~inside):
        mean = np.where(seen, shadows, 0).sum(0) / seen.sum(0)
        rest = np.where(seen, shadows - mean, 0)
        freedom = max(int(seen.sum()) - shadows.shape[1], 1)
        means.append(mean)
        spreads.append(max(float((rest**2).sum()) / freedom, 1e-6))
    density = [-((target - m) ** 2) / (2 * v) - np.log(v) / 2 for m, v in zip(means, spreads, strict=True)]
    ratio: Scores = density[0] - density[1]
    return ratio


def class_pull(before: State, after: State, classes: int) -> Tensor | None:
    """How an update moved the last bias, class by class: upwards for classes that the client has many of."""
    names = [n for n, t in before.items() if n.endswith("bias") and t.shape == (classes,)]
    return (after[names[-1]] - before[names[-1]]).double() if names else None


def correlation(pulls: Sequence[Scores], shares: Sequence[Scores]) -> Scores:
    """Client by client, how well the pull on each class tells the client's shares of the classes (Pearson's r)."""
    correlations = []
    for pull, share in zip(pulls, shares, strict=True):
        still = pull.std() < 1e-12 or share.std() < 1e-12
        correlations.append(0.0 if still else float(np.corrcoef(pull, share)[0, 1]))
    return np.array(correlations)


def first_linear(module: nn.Module) -> str | None:
    """The name of the first layer, if it is fully connected and has a bias: it lays its inputs open."""
    for name, part in module.named_modules():
        if next(part.parameters(recurse=False), None) is not None:
            return name if isinstance(part, nn.Linear) and part.bias is not None else None
    return None


def inputs_from_step(before: State, after: State, layer: str) -> Tensor:
    """The input of a single sample's step, read off the first layer: ∂L/∂W_i = ∂L/∂b_i · x for every row i.

    Phong, Aono, Hayashi, Wang, Moriai: Privacy-Preserving Deep Learning via Additively Homomorphic Encryption, 2018.
    """
    weight, bias = (after[f"{layer}.{n}"].double() - before[f"{layer}.{n}"].double() for n in ("weight", "bias"))
    row = int(bias.abs().argmax())
    return weight[row] / (bias[row] if bias[row] else 1.0)


def likeness(reconstructed: Tensor, inputs: Tensor) -> float:
    """The largest cosine between a reconstructed input and any sample."""
    flat = inputs.flatten(1).double()
    return float(torch.cosine_similarity(reconstructed.flatten().unsqueeze(0), flat).max())


def surrogate(module: nn.Module, inputs: Tensor, logits: Tensor, stream: torch.Generator) -> nn.Module:
    """The module brought to these logits in 40 epochs: what a client's public logits say of its model."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    target = softmax(logits, -1)
    module.train()
    for _ in range(40):
        for at in torch.split(torch.randperm(len(inputs), generator=stream), 64):
            if len(at) > 1:
                loss = cross_entropy(module(inputs[at]), target[at])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return module


def plainly(interval: Mapping[str, Any]) -> str:
    """A finding in a few words."""
    return f"{interval['value']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"
