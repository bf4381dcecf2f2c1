"""One pass over everyone's tests gives what client-by-client would."""

import numpy as np
import pytest
import torch
from smallest import images, small_experiment, small_method

from fedstill.core.shelf import Storage
from fedstill.data.portions import Portions
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.measures import Answers, accuracies, accuracy
from fedstill.experiment.metrics import Scorer
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage


class ReadsFirstPixel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x[:, 0, 0, 0].round().long(), 3).float()


def exam(**changes: object) -> Exam:
    """Predictions 0 1 2 0 1 2 against labels 0 1 1 0 2 2: right, right, wrong, right, wrong, right."""
    x = torch.zeros(6, 1, 8, 8)
    x[:, 0, 0, 0] = torch.tensor([0.0, 1, 2, 0, 1, 2])
    pool = images(x, torch.tensor([0, 1, 1, 0, 2, 2]), (0.0,), (1.0,))
    local = Portions(np.arange(5), np.array([3, 2, 0]))
    settings = {"whole": torch.tensor([2, 3, 4, 5]), "threads": 2, "chunk": 2, **changes}
    return Exam(pool, local, classes=3, device=torch.device("cpu"), **settings)  # type: ignore[arg-type]


def test_accuracies_by_hand() -> None:
    """Client 0: 2/3, client 1: 1/2, client 2 has no test; global test: 1/2; AMP = 3/5, FM = (1/12)²."""
    test = exam()
    answers = test.answers(ReadsFirstPixel())
    assert answers.correct.tolist() == [True, True, False, True, False, True]
    scores = test.scores(answers)
    assert scores["accuracy_per_client"] == [pytest.approx(2 / 3), 0.5, None]
    assert scores["accuracy"] == 0.5
    assert (scores["amp"], scores["wlp"], scores["fm"]) == pytest.approx((0.6, 0.5, 1 / 144))
    assert test.per_class(answers.correct) == [1.0, 0.0, 0.5]
    assert exam(whole=None).per_class(answers.correct) == [1.0, 0.5, 0.0]


def test_amp_fm_and_wlp_are_made_of_the_measure_asked_for() -> None:
    """Balanced accuracy. Client 0 has labels 0 1 1, answers 0 1 2: (1 + 1/2)/2 = 3/4; client 1 has labels 0 2,
    answers 0 1: (1 + 0)/2 = 1/2. AMP = (3·3/4 + 2·1/2)/5 = 13/20, FM = (1/8)², WLP = 1/2. On the global test, labels
    1 0 2 2, answers 2 0 1 2: (0 + 1 + 1/2)/3 = 1/2. Accuracy stays accuracy.
    """
    test = exam(scorer=Scorer.of("balanced-accuracy"))
    scores = test.scores(test.answers(ReadsFirstPixel()))
    assert (scores["amp"], scores["fm"], scores["wlp"]) == pytest.approx((0.65, 1 / 64, 0.5))
    assert (scores["accuracy"], scores["balanced-accuracy"]) == (0.5, 0.5)
    assert scores["balanced-accuracy_per_client"] == [0.75, 0.5, None]
    assert scores["accuracy_per_client"] == [pytest.approx(2 / 3), 0.5, None]


def test_of_what_should_be_little_the_worst_is_the_most() -> None:
    """One-hot logits of three classes: confidence e/(e + 2) = .576. Client 0 is right in 2 of 3: gap |2/3 − .576| =
    .0906; client 1 in 1 of 2: .0761. So client 0 is served worst, and less is better in AMP and WLP.
    """
    scorer = Scorer.of("calibration-error")
    test = exam(scorer=scorer)
    scores = test.scores(test.answers(ReadsFirstPixel()))
    confidence = float(torch.tensor(1.0).exp() / (torch.tensor(1.0).exp() + 2))
    assert scores["wlp"] == pytest.approx(2 / 3 - confidence, abs=1e-6)
    assert {shown.key: shown.direction for shown in scorer.shown} == {
        "amp": -1, "fm": -1, "wlp": -1, "accuracy": 1, "calibration-error": -1,
    }  # fmt: skip


def test_threads_and_one_pass_change_nothing() -> None:
    plan = small_experiment(small_method("fedavg"))
    ready = stage(plan, Storage())
    module = ready.env.module(ready.env.initial())
    each = ready.exam.scores(ready.exam.answers(module))["accuracy_per_client"]
    for client, index in enumerate(ready.exam.local):
        with torch.no_grad():
            alone = module(ready.exam.pool[index].inputs()).argmax(-1) == ready.exam.pool.y[index]
        assert each[client] == pytest.approx(float(alone.float().mean()))


def test_accuracies_of_many_groups_at_once_are_those_of_each() -> None:
    """Every share h/n with n up to 60, to the bit: hits first, then misses."""
    groups, hits = [], []
    for n in range(1, 61):
        for h in range(n + 1):
            groups.append(torch.arange(len(hits), len(hits) + n))
            hits += [True] * h + [False] * (n - h)
    labels = torch.zeros(len(hits), dtype=torch.int64)
    right = torch.tensor(hits).float()
    answers = Answers(labels, torch.stack([right, 1 - right], 1))
    assert accuracies(answers, groups) == [accuracy(answers[group]) for group in groups]


def test_what_clients_send_is_examined_in_the_network_it_is_of() -> None:
    """FML's clients send copies of the server's network; at such a rate they come back as they were."""
    plan = small_experiment(
        small_method("fml", lr=1e-12), models="mlp,resnet8-slim", rounds=1, active=1.0, per_class=True
    )
    scores = start(plan, out=None).rows[0]["models"]["active"]
    assert scores["per_class_after_training"] == [scores["per_class"]] * 6
