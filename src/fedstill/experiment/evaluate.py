"""Exams: a model is tested on all clients in one pass over all their test samples."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.data.samples import Samples
from fedstill.experiment.metrics import amp, fm, wlp


@dataclass(frozen=True)
class Exam:
    """Test samples of everyone in one pool; which of them are client k's local test, which the global test."""

    pool: Samples
    local: tuple[Tensor, ...]
    whole: Tensor | None
    classes: int
    device: torch.device
    threads: int = 1
    chunk: int = 500

    @cached_property
    def images(self) -> Tensor:
        """The pool, normalised once."""
        return self.pool.inputs().to(self.device)

    def correct(self, module: nn.Module) -> Tensor:
        """For every sample of the pool: is the module right? Chunks are fixed, so threads do not change the bits."""
        module = module.to(self.device).eval()

        def right(start: int) -> Tensor:
            with torch.no_grad():
                return module(self.images[start : start + self.chunk]).argmax(-1).cpu()  # type: ignore[no-any-return]

        with ThreadPoolExecutor(self.threads) as threads:
            predicted = list(threads.map(right, range(0, len(self.pool), self.chunk)))
        return torch.cat([self.pool.y[:0], *predicted]) == self.pool.y

    def local_accuracies(self, correct: Tensor, clients: Sequence[int] | None = None) -> list[float | None]:
        """Accuracy on the local tests of these clients (all, when not said); None where there is no test."""
        chosen = range(len(self.local)) if clients is None else clients
        return [float(correct[self.local[k]].float().mean()) if len(self.local[k]) else None for k in chosen]

    def accuracy(self, correct: Tensor) -> float | None:
        """Accuracy on the global test."""
        return None if self.whole is None else float(correct[self.whole].float().mean())

    def per_class(self, correct: Tensor) -> list[float | None]:
        """Accuracy on each class, over the global test where there is one, else over all local tests."""
        where = torch.cat(self.local) if self.whole is None else self.whole
        hits, labels = correct[where], self.pool.y[where]
        return [float(hits[labels == c].float().mean()) if (labels == c).any() else None for c in range(self.classes)]

    def scores(self, accuracies: Sequence[float | None], accuracy: float | None) -> Mapping[str, Any]:
        """AMP, FM and WLP of these local accuracies, beside the global-test accuracy."""
        samples = [len(index) for index in self.local]
        return {
            "amp": amp(accuracies, samples),
            "fm": fm(accuracies),
            "wlp": wlp(accuracies),
            "accuracy": accuracy,
            "accuracy_per_client": list(accuracies),
        }
