"""Label counts: what FedGen's and FedFTG's clients tell of their data, and what the server makes of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstill.core.method import Env
from fedstill.core.record import Carries, State, carries, record


@record
class CountedUpdate:
    """What leaves a client: its weights, and how many samples of each class it has."""

    weights: State = carries(Carries.WEIGHTS)
    labels: Tensor = carries(Carries.LABEL_COUNTS)


class Counting:
    """The side of a method that checks uploads, where clients send weights and label counts (abstract)."""

    def template(self, env: Env) -> CountedUpdate:
        """Weights of the global model's form, a count for each class."""
        return CountedUpdate(env.form(), torch.zeros(env.classes, dtype=torch.int64))

    def objection(self, env: Env, upload: CountedUpdate) -> str | None:
        """Counts are not negative."""
        return miscounted(upload.labels)


def counts_of(uploads: Sequence[CountedUpdate]) -> Tensor:
    """Clients × classes."""
    return torch.stack([upload.labels for upload in uploads])


def class_shares(counts: Tensor) -> Tensor:
    """n_k^c / n^c: which part of a class's samples each of these clients has; 0 for a class nobody has.

    >>> class_shares(torch.tensor([[3, 0, 2], [1, 0, 2]])).tolist()
    [[0.75, 0.0, 0.5], [0.25, 0.0, 0.5]]
    """
    return (counts.double() / counts.sum(0).clamp(min=1)).float()


def draw_labels(chances: Tensor, count: int, stream: torch.Generator) -> Tensor:
    """Labels drawn in proportion to `chances` (one for each class)."""
    return torch.multinomial(chances.double(), count, replacement=True, generator=stream)


def miscounted(labels: Tensor) -> str | None:
    """What is wrong with label counts, if anything."""
    fine = bool((labels >= 0).all()) and bool(labels.any())
    return None if fine else "label counts: must be ≥ 0, and one of them > 0"


def diversity(noise: Tensor, made: Tensor) -> Tensor:
    """exp(−mean over all pairs of |Δ made| · (Δ noise)²): large where different noise makes the same thing.

    Both distances are means over elements, as in FedGen's and FedFTG's code.

        >>> diversity(torch.tensor([[0.0], [2.0]]), torch.zeros(2, 3)).item()
        1.0
    """
    flat = made.flatten(1)
    apart = torch.cdist(flat, flat, p=1) / flat.shape[1]
    asked = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(-1)
    return (-apart * asked).mean().exp()
