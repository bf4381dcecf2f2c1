"""A student taught from noise alone, by a teacher that is a run like any other."""

from pathlib import Path

import pytest
import torch

from fedstill.core.errors import UsageError
from fedstill.experiment.centralised import mean_images, taught, teacher_plan
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.run import start


@pytest.fixture(scope="module")
def plan() -> Experiment:
    method = {
        "name": "fedkf",
        "lr": 0.2,
        "batch": 32,
        "noise": 16,
        "channels": 8,
        "generator_lr": 0.01,
        "lambda1": 0.2,
        "lambda2": 0.02,
    }
    return experiment({"method": method, "data": "digits", "clients": 1, "active": 1.0, "rounds": 6, "local_test": 0.0})


@pytest.fixture(scope="module")
def teacher(plan: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher")
    start(teacher_plan(plan), out=out, name="run")
    return out / "run"


def test_the_teacher_is_fedavg_with_one_client(plan: Experiment) -> None:
    made = teacher_plan(plan)
    assert (made.title, made.clients, made.method.lr, made.method.epochs) == ("fedavg", 1, 0.2, 1)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"method = fedprox: a student without data is taught by one of .*fedkf"):
        teacher_plan(experiment({"method": "fedprox"}))


def test_the_student_learns_without_data_and_is_not_taught_twice(plan: Experiment, teacher: Path) -> None:
    """Ten classes: a guess is right in one of ten; the student, which has seen noise only, is far better."""
    first = taught(plan, teacher)
    assert len(first.accuracies) == 6
    assert first.accuracies[-1] > 0.5
    (file,) = teacher.glob("student-*.safetensors")
    when = file.stat().st_mtime_ns
    again = taught(plan, teacher)
    assert again.accuracies == first.accuracies
    assert all(torch.equal(again.student[name], first.student[name]) for name in first.student)
    assert file.stat().st_mtime_ns == when


def test_mean_images_of_every_class(plan: Experiment, teacher: Path) -> None:
    real, imagined, ready = mean_images(plan, teacher, samples=512)
    assert real.shape == imagined.shape == (10, 1, 8, 8)
    data = ready.party(0).data
    zeros = data.x[data.y == 0].float().mean(0)
    assert torch.allclose(real[0], zeros / zeros.max() * real[0].max(), atol=1e-4)  # the mean of the real zeros
    assert 0 <= float(imagined.min()) <= float(imagined.max()) <= 1
    assert not torch.allclose(imagined[0], imagined[1])
