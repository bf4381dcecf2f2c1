"""How good a model's answers to some samples are: accuracy by default, others by name (`--metric macro-f1`).

AMP, FM and WLP are made of a measure's values on the clients' local tests. A measure of one's own is one entry:

    @measure("top-2", "top-2 accuracy")
    def top_2(answers: Answers) -> float:
        return float((answers.logits.topk(2).indices == answers.labels[:, None]).any(1).double().mean())
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedstill.core.errors import RunError
from fedstill.core.registry import Registry
from fedstill.data.portions import Ints, Portions

V = TypeVar("V")


@dataclass(frozen=True)
class Answers:
    """What a model answered to some samples: their true labels, and its logits (samples × classes)."""

    labels: Tensor
    logits: Tensor

    def __getitem__(self, index: Tensor | Ints) -> "Answers":
        """The answers to some of the samples."""
        return Answers(self.labels[index], self.logits[index])

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def predicted(self) -> Tensor:
        """The class the model chose, for every sample."""
        return self.logits.argmax(-1)

    @cached_property
    def correct(self) -> Tensor:
        """Is the model right? For every sample."""
        return self.predicted == self.labels

    @cached_property
    def probabilities(self) -> Tensor:
        """The model's probability of every class, for every sample."""
        return torch.softmax(self.logits.double(), -1)


@dataclass(frozen=True)
class Measure:
    """A measure of answers: `score` gives a number from 0 to 1, or None where these samples do not define it."""

    key: str
    title: str
    score: Callable[[Answers], float | None]
    direction: int = 1
    """1 where more is better, -1 where less is."""
    doc: str = ""
    by_group: Callable[[Answers, Sequence[Ints]], list[float | None]] | None = None
    """The scores of many groups of samples at once, where that is faster than one by one; the same numbers."""

    def each(self, answers: Answers, groups: Sequence[Ints]) -> list[float | None]:
        """The score of each group of samples, given by their places."""
        if self.by_group is not None:
            return self.by_group(answers, groups)
        return [self(answers[group]) for group in groups]

    def __call__(self, answers: Answers) -> float | None:
        """The score; None where there is no sample."""
        return number(self.key, self.score, answers) if len(answers) else None


def number(key: str, made: Callable[[V], Any], of: V) -> float | None:
    """What a measure or a metric, perhaps a user's own, makes `of` values: a number, or None. Errors name its `key`."""
    try:
        value = made(of)
        return None if value is None else float(value)
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise RunError(f"metric {key}: gives no number: {why}") from problem


measures: Registry[Measure] = Registry("metric", instances_of=Measure, group="fedstill.measure")


def measure(
    key: str,
    title: str,
    direction: int = 1,
    by_group: Callable[[Answers, Sequence[Ints]], list[float | None]] | None = None,
) -> Callable[[Callable[[Answers], float | None]], Callable[[Answers], float | None]]:
    """Decorate a function of answers to make it known as the measure `key`; its docstring says what it is.

    `by_group`: the same for many groups of samples at once, where there is a faster way (see `Measure`).
    """

    def add(score: Callable[[Answers], float | None]) -> Callable[[Answers], float | None]:
        doc = (score.__doc__ or title).split("\n")[0]
        measures.register(key)(Measure(key, title, score, direction, doc, by_group))
        return score

    return add


def accuracies(answers: Answers, groups: Sequence[Ints]) -> list[float | None]:
    """The share of right answers in each group; None where a group is empty.

    >>> answers = Answers(torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0], [0, 1], [1, 0]]))
    >>> accuracies(answers, Portions.by_owner(torch.tensor([0, 2, 0]).numpy(), clients=3))
    [0.5, None, 1.0]
    """
    portions = Portions.of(groups)
    sizes = torch.from_numpy(portions.sizes)
    place = torch.repeat_interleave(torch.arange(len(portions)), sizes)
    hits = torch.zeros(len(portions)).index_add_(0, place, answers.correct[portions.flat].float())
    return [share if size else None for share, size in zip((hits / sizes).tolist(), sizes.tolist(), strict=True)]


@measure("accuracy", "accuracy", by_group=accuracies)
def accuracy(answers: Answers) -> float:
    """The share of right answers."""
    return float(answers.correct.float().mean())


@measure("balanced-accuracy", "balanced accuracy")
def balanced_accuracy(answers: Answers) -> float:
    """The share of right answers in each class that is there, averaged over these classes.

    >>> two_to_one = Answers(torch.tensor([0, 0, 0, 1]), torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]))
    >>> round(balanced_accuracy(two_to_one), 4)  # (2/3 + 1)/2
    0.8333
    """
    from sklearn.metrics import recall_score

    there = torch.unique(answers.labels).numpy()
    return float(
        recall_score(answers.labels.numpy(), answers.predicted.numpy(), labels=there, average="macro", zero_division=0)
    )


@measure("macro-f1", "macro-F1")
def macro_f1(answers: Answers) -> float:
    """The F1 score of each class that is there or was answered, averaged over these classes.

    >>> macro_f1(Answers(torch.tensor([0, 0, 1]), torch.tensor([[1.0, 0], [0, 1], [0, 1]])))  # 2/3 and 2/3
    0.6666666666666666
    """
    from sklearn.metrics import f1_score

    return float(f1_score(answers.labels.numpy(), answers.predicted.numpy(), average="macro", zero_division=0))


@measure("auroc", "AUROC")
def auroc(answers: Answers) -> float | None:
    """The area under the ROC curve, each class against the rest, averaged over classes with both on offer.

    >>> auroc(Answers(torch.tensor([0, 0, 1]), torch.tensor([[2.0, 0], [0, 1], [0, 2]])))
    1.0
    >>> auroc(Answers(torch.tensor([0]), torch.tensor([[2.0, 0]]))) is None
    True
    """
    from sklearn.metrics import roc_auc_score

    found = []
    for c in torch.unique(answers.labels).tolist():
        here = (answers.labels == c).numpy()
        if not here.all():
            found.append(float(roc_auc_score(here, answers.probabilities[:, c].numpy())))
    return sum(found) / len(found) if found else None


@measure("calibration-error", "calibration error", direction=-1)
def calibration_error(answers: Answers, bins: int = 15) -> float:
    """The expected calibration error: confidence against accuracy in 15 bins of equal width, weighed by samples.

    >>> logits = torch.log(torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]))
    >>> round(calibration_error(Answers(torch.tensor([0, 1, 1]), logits)), 4)  # 2/3·|.9 − .5| + 1/3·|.7 − 1|
    0.3667
    """
    confidence = answers.probabilities.amax(-1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, place, answers.correct.double() - confidence)
    return float(gaps.abs().sum() / len(answers))
