"""Accuracy and fairness over clients (FedKF, definitions 1–3), and how fast a method gets there."""

from collections.abc import Sequence

import numpy as np

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
