"""Accuracy and fairness over clients (FedKF, definitions 1–3), and how fast a method gets there."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Accuracies = Sequence[float | None]
"""Accuracy on every client's local test; None for a client that has none."""


def amp(accuracies: Accuracies, samples: Sequence[int]) -> float:
    """Average model performance: Σ n_k a_k / Σ n_k over the clients' test samples.

    >>> round(amp([0.6, 0.7, 0.8], [10, 10, 10]), 5)
    0.7
    """
    pairs = [(a, n) for a, n in zip(accuracies, samples, strict=True) if a is not None and n]
    return sum(a * n for a, n in pairs) / sum(n for _, n in pairs) if pairs else float("nan")


def fm(accuracies: Accuracies) -> float:
    """Fairness: the variance of the clients' accuracies around their plain mean; smaller is fairer.

    >>> round(fm([0.6, 0.7, 0.8]), 5), round(fm([0.65, 0.65, 0.8]), 5)
    (0.00667, 0.005)
    """
    known = [a for a in accuracies if a is not None]
    return float(np.var(known)) if known else float("nan")


def wlp(accuracies: Accuracies) -> float:
    """Worst local performance: the accuracy of the client served worst.

    >>> wlp([0.6, 0.7, 0.8])
    0.6
    """
    return min((a for a in accuracies if a is not None), default=float("nan"))


def rounds_to(curve: Sequence[float | None], target: float) -> int | None:
    """The first round (from 1) whose value reaches the target; None when none does.

    >>> rounds_to([0.2, 0.5, 0.9], 0.5), rounds_to([0.2], 0.5)
    (2, None)
    """
    return next((t + 1 for t, value in enumerate(curve) if value is not None and value >= target), None)


def mixtures(accuracies: Accuracies, count: int, rng: np.random.Generator) -> list[float]:
    """Accuracy on random mixtures of the clients' distributions: each at least the worst client's (FedKF V-D)."""
    known = np.array([a for a in accuracies if a is not None])
    return [float(known @ rng.dirichlet(np.ones(len(known)))) for _ in range(count)]


def identification(trusted: Sequence[int], answered: Sequence[int], malicious: Sequence[int]) -> Mapping[str, float]:
    """Precision and recall of shutting out malicious clients, among those that answered.

    >>> identification(trusted=[1, 3], answered=[0, 1, 2, 3], malicious=[0])
    {'precision': 0.5, 'recall': 1.0}
    """
    shut = set(answered) - set(trusted)
    bad = set(malicious) & set(answered)
    hit = len(shut & bad)
    return {"precision": hit / len(shut) if shut else 1.0, "recall": hit / len(bad) if bad else 1.0}


def domain_correlation(
    weights: Mapping[str, Sequence[float]], made: Sequence[int], counts: NDArray[np.integer]
) -> float | None:
    """DaFKD: Pearson's correlation of α̂ with clients' label shares, over clients × classes of generated samples.

    `weights` holds a client's mean α̂ for each class, `made` how many samples of each class were generated (classes
    without any are left out), `counts` everybody's training samples, clients × classes. None where nothing varies.

        >>> round(domain_correlation({"0": [0.8, 0.3], "1": [0.2, 0.7]}, [5, 5], np.array([[9, 1], [2, 8]])), 5)
        0.97073
    """
    clients = [int(k) for k in weights]
    chosen = np.array(made) > 0
    told = np.array([weights[str(k)] for k in clients], float)[:, chosen].ravel()
    held = counts[clients].astype(float)
    shares = (held / np.maximum(held.sum(1, keepdims=True), 1))[:, chosen].ravel()
    if len(told) < 2 or np.ptp(told) < 1e-12 or np.ptp(shares) < 1e-12:
        return None
    return float(np.corrcoef(told, shares)[0, 1])
