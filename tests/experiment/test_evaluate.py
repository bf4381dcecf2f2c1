"""One pass over everyone's tests gives what client-by-client would."""

import pytest
import torch
from smallest import small_experiment, small_method

from fedstill.core.shelf import Storage
from fedstill.data.pixels import images
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.stage import stage


class ReadsFirstPixel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x[:, 0, 0, 0].round().long(), 3).float()


def exam(**changes: object) -> Exam:
    """Predictions 0 1 2 0 1 2 against labels 0 1 1 0 2 2: right, right, wrong, right, wrong, right."""
    x = torch.zeros(6, 1, 8, 8)
    x[:, 0, 0, 0] = torch.tensor([0.0, 1, 2, 0, 1, 2])
    pool = images(x, torch.tensor([0, 1, 1, 0, 2, 2]), (0.0,), (1.0,))
    local = (torch.tensor([0, 1, 2]), torch.tensor([3, 4]), torch.tensor([], dtype=torch.int64))
    settings = {"whole": torch.tensor([2, 3, 4, 5]), "threads": 2, "chunk": 2, **changes}
    return Exam(pool, local, classes=3, device=torch.device("cpu"), **settings)  # type: ignore[arg-type]


def test_accuracies_by_hand() -> None:
    """Client 0: 2/3, client 1: 1/2, client 2 has no test; global test: 1/2; AMP = 3/5, FM = (1/12)²."""
    test = exam()
    correct = test.correct(ReadsFirstPixel())
    assert correct.tolist() == [True, True, False, True, False, True]
    each = test.local_accuracies(correct)
    assert each == [pytest.approx(2 / 3), 0.5, None]
    scores = test.scores(each, test.accuracy(correct))
    assert scores["accuracy"] == 0.5
    assert (scores["amp"], scores["wlp"], scores["fm"]) == pytest.approx((0.6, 0.5, 1 / 144))
    assert test.per_class(correct) == [1.0, 0.0, 0.5]
    assert exam(whole=None).per_class(correct) == [1.0, 0.5, 0.0]


def test_threads_and_one_pass_change_nothing() -> None:
    plan = small_experiment(small_method("fedavg"))
    ready = stage(plan, Storage())
    module = ready.env.module(ready.env.initial())
    whole = ready.exam.correct(module)
    for client, index in enumerate(ready.exam.local):
        with torch.no_grad():
            alone = module(ready.exam.pool[index].inputs()).argmax(-1) == ready.exam.pool.y[index]
        assert ready.exam.local_accuracies(whole)[client] == pytest.approx(float(alone.float().mean()))
