"""Exams: a model is tested on all clients in one pass over all their test samples."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.data.portions import Portions
from fedstill.data.samples import Samples
from fedstill.experiment.measures import Answers
from fedstill.experiment.metrics import Scorer

Marks = Mapping[str, float | None]
"""A model's measures on some samples, by key; None where they are not defined there."""


def mean_marks(several: Sequence[Marks]) -> Marks:
    """The mean of every measure over several models' marks, where they are defined.

    >>> mean_marks([{"accuracy": 0.5}, {"accuracy": 1.0}, {"accuracy": None}, {}])
    {'accuracy': 0.75}
    """
    values_by_key: dict[str, list[float]] = {}
    for marks in several:
        for key, value in marks.items():
            if value is not None:
                values_by_key.setdefault(key, []).append(value)
    return {key: sum(values) / len(values) for key, values in values_by_key.items()}


@dataclass(frozen=True)
class Exam:
    """Test samples of everyone in one pool; which of them are client k's local test, which the global test."""

    pool: Samples
    local: Portions
    whole: Tensor | None
    classes: int
    device: torch.device
    threads: int = 1
    chunk: int = 500
    scorer: Scorer = field(default_factory=Scorer.of)

    @cached_property
    def images(self) -> Tensor:
        """The pool, normalised once."""
        return self.pool.inputs().to(self.device)

    def answers(self, module: nn.Module) -> Answers:
        """The module's answers to the whole pool. Chunks are fixed, so threads do not change the bits."""
        module = module.to(self.device).eval()

        def ask(start: int) -> Tensor:
            with torch.no_grad():
                return module(self.images[start : start + self.chunk]).cpu()  # type: ignore[no-any-return]

        with ThreadPoolExecutor(self.threads) as threads:
            logits = list(threads.map(ask, range(0, len(self.pool), self.chunk)))
        return Answers(self.pool.y, torch.cat(logits) if logits else torch.zeros(0, self.classes))

    def correct(self, module: nn.Module) -> Tensor:
        """For every sample of the pool: is the module right?"""
        return self.answers(module).correct

    def accuracy(self, correct: Tensor) -> float | None:
        """Accuracy on the global test."""
        return None if self.whole is None else float(correct[self.whole].float().mean())

    def per_class(self, correct: Tensor) -> list[float | None]:
        """Accuracy on each class, over the global test where there is one, else over all local tests."""
        where = torch.from_numpy(self.local.flat) if self.whole is None else self.whole
        hits, labels = correct[where], self.pool.y[where]
        return [float(hits[labels == c].float().mean()) if (labels == c).any() else None for c in range(self.classes)]

    def local_marks(self, answers: Answers, client: int) -> Marks:
        """The measures on a client's local test."""
        return self._marks(answers[self.local[client]])

    def global_marks(self, answers: Answers) -> Marks:
        """The measures on the global test; nothing where there is none."""
        return {} if self.whole is None else self._marks(answers[self.whole])

    def _marks(self, answers: Answers) -> Marks:
        return {key: measure(answers) for key, measure in self.scorer.needed.items()}

    def scores(self, answers: Answers) -> dict[str, Any]:
        """A model's metrics, from its answers to the whole pool."""
        columns = {key: measure.each(answers, self.local) for key, measure in self.scorer.needed.items()}
        each = [dict(zip(columns, marks, strict=True)) for marks in zip(*columns.values(), strict=True)]
        return self.summary(each, self.global_marks(answers))

    def summary(self, each: Sequence[Marks], whole: Marks) -> dict[str, Any]:
        """The metrics of measures on every client's local test and on the global test."""
        return self.scorer.scores(each, self.local.sizes.tolist(), whole)
