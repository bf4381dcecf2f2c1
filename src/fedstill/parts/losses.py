"""The losses the papers are made of, each safe where logarithms and roots are not."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, huber_loss, log_softmax, softmax, softplus
from torch.nn.functional import cross_entropy as cross_entropy


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher ‖ student) of logits: mean over the batch of Σ a·log(a/b), times t².

    >>> kl(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])).item()
    0.0
    """
    return kl_each(teacher / temperature, student / temperature).mean() * temperature**2


def kl_each(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher ‖ student) of logits, sample by sample: Σ a·log(a/b)."""
    a = log_softmax(teacher, dim=-1)
    b = log_softmax(student, dim=-1)
    return (a.exp() * (a - b)).sum(-1)


def one_hot(logits: Tensor) -> Tensor:
    """L_OH (FedKF, 2): cross-entropy to the class the teacher finds most likely; small when it is sure."""
    return cross_entropy(logits, logits.argmax(-1))


def class_entropy(logits: Tensor) -> Tensor:
    """L_IE (FedKF, 3): Σ_c p̄_c log p̄_c of the batch's mean prediction; least when all classes are equally frequent."""
    mean = softmax(logits, -1).mean(0)
    floor = torch.finfo(mean.dtype).tiny  # the gradient of xlogy(0, 0) is 0/0
    return torch.xlogy(mean, mean.clamp_min(floor)).sum()


def activation(features: Tensor) -> Tensor:
    """L_A (FedKF, 4): minus the mean absolute feature; real samples excite a network more than noise does."""
    return -features.abs().mean()


def relations(logits: Tensor, paper_mu: bool = False) -> Tensor:
    """ψ_D (FedRAD, 7): Euclidean distances of all pairs of a batch, divided by their mean μ.

    One entry for each unordered pair. `paper_mu` divides the sum over the B(B−1) ordered pairs by B², as written.

    >>> relations(torch.tensor([[0.0], [1.0], [3.0]])).tolist()         # distances 1, 3, 2, their mean 2
    [0.5, 1.5, 1.0]
    """
    distances = torch.pdist(logits)  # where two samples agree its gradient is 0, not that of a root at 0
    share = 1 - 1 / len(logits) if paper_mu else 1.0
    return distances / (share * distances.mean()).clamp_min(1e-12)


def relation_gap(teacher: Tensor, student: Tensor, delta: float = 1.0, pairs: str = "mean") -> Tensor:
    """L_RKD (FedRAD, 8): Huber loss between the relations of two batches; the teacher's are constants.

    `pairs`: the `mean` over pairs; `sum` over the B(B−1) ordered ones; `letter`, that sum divided by B, as the means of
    (4) to (6) are sums divided by B. Fewer than two samples give 0.
    """
    if not student.numel():
        return student.sum()
    loss = huber_loss(student, teacher.detach(), delta=delta)
    ordered = 2 * student.numel()  # both orders of every pair: B(B−1)
    size = (1 + math.sqrt(1 + 4 * ordered)) / 2  # B
    return loss * {"mean": 1.0, "letter": ordered / size, "sum": ordered}[pairs]


def relational(
    teacher: Tensor, student: Tensor, delta: float = 1.0, paper_mu: bool = False, pairs: str = "mean"
) -> Tensor:
    """L_RKD between two batches of logits, for a method that needs their relations once: see `relation_gap`.

    Scaling either's logits, or permuting both batches, changes nothing.
    """
    return relation_gap(relations(teacher.detach(), paper_mu), relations(student, paper_mu), delta, pairs)


def entropy_weight(logits: Tensor, eta: float = 1.6, temperature: float = 1.0) -> Tensor:
    """EWAW (FedRAD, 9, 10): λ = η / (e^H + 1) in [0, 1], H the batch's mean prediction entropy; a constant.

    >>> round(entropy_weight(torch.tensor([[99.0, 0.0]])).item(), 4)     # H = 0
    0.8
    """
    logp = log_softmax(logits.detach() / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(-1).mean()
    return (eta / (entropy.exp() + 1)).clamp(0, 1)  # e^H is at most the number of classes


def decaying(start: float, decay: float, least: float, round: int) -> float:
    """EDA (FedRAD): α_t = max(α_min, α_0 · decay^t), t the round from 0.

    >>> [decaying(0.9, 0.5, 0.3, t) for t in range(3)]
    [0.9, 0.45, 0.3]
    """
    return max(least, start * decay**round)


def contrast(features: Tensor, near: Tensor, far: Tensor, tau: float = 0.5) -> Tensor:
    """ℓ_con (MOON, 3): features are to resemble `near` more than `far`; mean of log(1 + e^((s_far − s_near)/τ))."""
    gap = cosine_similarity(features, far, dim=-1) - cosine_similarity(features, near, dim=-1)
    return softplus(gap / tau).mean()
