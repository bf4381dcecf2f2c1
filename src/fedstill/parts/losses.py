"""The losses the papers are made of, each safe where logarithms and roots are not."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, softmax

__all__ = ["activation", "class_entropy", "cross_entropy", "kl", "one_hot"]


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher ‖ student) of logits: mean over the batch of Σ a·log(a/b), times t².

    >>> kl(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])).item()
    0.0
    """
    a = log_softmax(teacher / temperature, dim=-1)
    b = log_softmax(student / temperature, dim=-1)
    return (a.exp() * (a - b)).sum(-1).mean() * temperature**2


def one_hot(logits: Tensor) -> Tensor:
    """L_OH (FedKF, 2): cross-entropy to the class the teacher finds most likely; small when it is sure."""
    return cross_entropy(logits, logits.argmax(-1))


def class_entropy(logits: Tensor) -> Tensor:
    """L_IE (FedKF, 3): Σ_c p̄_c log p̄_c of the batch's mean prediction; least when all classes are equally frequent."""
    mean = softmax(logits, -1).mean(0)
    return torch.xlogy(mean, mean).sum()


def activation(features: Tensor) -> Tensor:
    """L_A (FedKF, 4): minus the mean absolute feature; real samples excite a network more than noise does."""
    return -features.abs().mean()
