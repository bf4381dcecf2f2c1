"""FedDF: the ensemble's mean logits, early stopping, a student for each architecture, and the logit form."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smallest import same_bits, small_experiment, small_method
from torch import nn

from fedstill.core.errors import UsageError
from fedstill.core.loop import rounds
from fedstill.core.shelf import Storage
from fedstill.experiment.run import active, start, transport
from fedstill.experiment.stage import Stage, stage
from fedstill.methods.feddf import WeightFusion
from fedstill.methods.logit_fusion import LogitFusion
from fedstill.parts.architectures import SERVER
from fedstill.parts.distil import soft_kl
from fedstill.parts.learner import predict
from fedstill.parts.losses import kl


def wide(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Another network than the server's."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))


def small(**settings: Any) -> Any:
    return small_method("feddf", **{"distill_steps": 20, "lr": 0.05, **settings})


def played(method: Any, count: int, **settings: Any) -> tuple[Stage, list[Any]]:
    plan = small_experiment(method, rounds=count, **settings)
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        return ready, list(rounds(method, ready.env, link, lambda t: active(plan, t), count))


def test_the_teacher_is_the_softmax_of_the_mean_logits() -> None:
    method = small(proxy=16, temperature=2.0)
    ready, (done,) = played(method, 1)
    lesson = method.form.lesson(ready.env.at(0), done.replies)
    assert len(lesson.images) == 16
    logits = [ready.env.module(r.upload.weights).eval()(lesson.images).detach() for r in done.replies]
    torch.testing.assert_close(lesson.targets, torch.softmax(sum(logits) / len(logits) / 2.0, -1))  # type: ignore[operator]


def test_the_student_starts_at_the_average_and_is_never_worse_on_held_out_samples() -> None:
    method = small(distill_steps=60, lr=0.3, epochs=10)
    ready, (done,) = played(method, 1)
    env, replies = ready.env.at(0), done.replies
    sizes = [r.samples for r in replies]
    by_hand = sum(n * r.upload.weights["head.weight"] for n, r in zip(sizes, replies, strict=True)) / sum(sizes)
    torch.testing.assert_close(done.server.averages[SERVER]["head.weight"], by_hand)
    _, exam = method.form.lesson(env, replies).split(env, method.held_out)
    before, after = (exam.loss(env.module(m[SERVER])) for m in (done.server.averages, done.server.students))
    assert after < before
    assert 10 <= done.server.steps[SERVER] <= 60


def test_a_student_that_only_gets_worse_is_given_up() -> None:
    """A rate of 100 spoils the student at once: the average stays, after `patience` steps."""
    method = small(distill_lr=100.0, distill_steps=500, patience=20)
    _, (done,) = played(method, 1)
    assert done.server.steps[SERVER] == 20
    assert same_bits(done.server.students, done.server.averages)


def test_distillation_by_sgd_goes_down_the_gradient_from_the_average() -> None:
    """Ten steps, each on all 16 samples of the lesson: w ← w − lr · ∇ KL(teacher ‖ student)."""
    method = small(distill_optimizer="sgd", distill_lr=0.1, distill_steps=10, distill_batch=64, proxy=20)
    ready, (done,) = played(method, 1)
    env = ready.env.at(0)
    lesson, _ = method.form.lesson(env, done.replies).split(env, method.held_out)
    module = env.module(done.server.averages[SERVER])
    for _ in range(10):
        slopes = torch.autograd.grad(soft_kl(lesson.targets, module(lesson.images)), list(module.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(module.parameters(), slopes, strict=True):
                parameter -= 0.1 * slope
    torch.testing.assert_close(dict(done.server.students[SERVER]), dict(module.state_dict()))
    assert not same_bits(done.server.students, done.server.averages)


def test_one_student_for_each_architecture() -> None:
    models = ("mlp", f"{__name__}:wide") * 3
    plan = small_experiment(small(lr=0.3, epochs=5), models=models, active=1.0)
    result = start(plan, out=None)
    assert result.models == ["global", "global (as client 1)", "average", "average (as client 1)"]
    assert all(result.last(name)["amp"] > 0.4 for name in result.models)
    ready, (done,) = played(small(), 1, models=models, active=1.0)
    assert done.server.kinds == {0: SERVER, 1: 1, 2: SERVER, 3: 1, 4: SERVER, 5: 1}
    lesson = small().form.lesson(ready.env.at(0), done.replies)
    everyone = [ready.env.module(r.upload.weights, r.client).eval()(lesson.images).detach() for r in done.replies]
    torch.testing.assert_close(lesson.targets, torch.softmax(sum(everyone) / 6, -1))  # type: ignore[operator]


def test_labels_of_the_proxy_are_not_looked_at() -> None:
    method = small()
    ready, (done,) = played(method, 1)
    public = replace(ready.env.public, y=torch.zeros_like(ready.env.public.y))
    blind = method.server(replace(ready.env, public=public).at(0), method.init_server(ready.env), done.replies)
    assert same_bits(blind.students, done.server.students)


def test_the_logit_form_sends_logits_only_and_every_client_has_its_own_model() -> None:
    result = start(small_experiment(small(mode="logits", epochs=1), models=("mlp", f"{__name__}:wide") * 3), out=None)
    assert set(result.bytes_by_field()["up"]) == {"logits", "index"}
    assert result.models == ["personal"]


def test_in_the_logit_form_clients_come_nearer_to_the_mean_logits() -> None:
    method = small(mode="logits", lr=0.01)
    ready, (first,) = played(method, 1)
    wisdom = first.server.wisdom
    torch.testing.assert_close(wisdom.logits, sum(r.upload.logits for r in first.replies) / len(first.replies))
    env = ready.env.at(1, 0)
    learner = method.form.learner(env, env.module(env.initial(0), 0))
    images = env.public.inputs()
    before = float(kl(wisdom.logits, predict(learner.module, images)))
    method.form.study(env, learner, 1, wisdom)
    assert float(kl(wisdom.logits, predict(learner.module, images))) < before


def test_the_logit_form_takes_logit_gathers_and_attacks_and_the_weight_form_does_not() -> None:
    assert small_experiment(small(mode="logits", gather="identify")).method.gather is not None
    with pytest.raises(UsageError, match="gather = identify"):
        small_experiment(small(gather="identify"))


def test_training_samples_as_the_proxy_leave_local_tests_out() -> None:
    plan = small_experiment(small(), public="train", local_test=0.25)
    ready = stage(plan, Storage())
    assert any("public = train" in note for note in ready.notes)
    assert len(ready.env.public) == sum(ready.env.sizes)
    trained = np.sort(np.concatenate(ready.parts))
    assert len(trained) == len(ready.env.public)
    tests = {x.numpy().tobytes() for x in ready.exam.pool.x[ready.exam.local.flat]}
    proxy = [x.numpy().tobytes() for x in ready.env.public.x]
    assert sum(x in tests for x in proxy) <= len(proxy) // 50  # digits has a few images twice


@pytest.mark.parametrize(("mode", "form"), [("weights", WeightFusion), ("logits", LogitFusion)])
def test_one_name_two_methods_and_a_setting_chooses(mode: str, form: type) -> None:
    method = small(mode=mode, temperature=2.5)
    assert type(method.form) is form
    assert (method.form.temperature, method.form.epochs, method.form.gather) == (2.5, 1, method.gather)
    assert method.one_download == (mode == "logits")
    assert type(replace(method, mode="weights").form) is WeightFusion


@pytest.mark.parametrize("gather", ["krum", "remember", {"name": "chain", "gathers": ["median", "remember"]}])
def test_a_gather_of_weights_is_refused_before_the_run_where_networks_differ(gather: Any, tmp_path: Path) -> None:
    plan = small_experiment(small(gather=gather), models="mlp,resnet8-slim")
    name = gather if isinstance(gather, str) else gather["name"]
    with pytest.raises(UsageError, match=f"^gather = {name}: works on models of one form; these clients' networks"):
        start(plan, out=tmp_path)
    start(small_experiment(small(gather=gather), rounds=1), out=None)
