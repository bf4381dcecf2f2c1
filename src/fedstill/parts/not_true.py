"""Not-true distillation: what a teacher knows of the classes that a sample does not belong to.

>>> import torch
>>> not_true(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1])).tolist()
[[1.0, 3.0]]
"""

import torch
from torch import Tensor

from fedstill.parts.losses import kl


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The logits (batch × classes) without that of each sample's own class: batch × (classes − 1)."""
    others = torch.arange(logits.shape[-1] - 1, device=y.device)
    return logits.gather(1, others + (others >= y[:, None]))


def not_true_kl(teacher: Tensor, student: Tensor, y: Tensor, temperature: float = 1.0) -> Tensor:
    """L_NTD (FedNTD, 5): KL(q̃_teacher ‖ q̃_student) of the softmax over the not-true classes, times t².

    `teacher`, `student`: logits (batch × classes); `y`: labels. With two classes there is one not-true class: 0.
    """
    return kl(not_true(teacher, y), not_true(student, y), temperature)
