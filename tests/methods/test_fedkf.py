"""FedKF's own promises: equations (2)–(8) in place, the teacher frozen, the generator alive across rounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method
from torch import nn

from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, turn
from fedstill.data.kinds import Image
from fedstill.experiment.run import resume, start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedKF
from fedstill.methods.fedkf import Imagination, Teaching
from fedstill.methods.fedkf_stationary import StationaryFedKF
from fedstill.models import build_generator
from fedstill.parts.gather import Everyone, Remember
from fedstill.parts.imagination import Drawing
from fedstill.parts.learner import Learner, frozen
from fedstill.parts.losses import class_entropy


class Linear(nn.Module):
    """Two inputs, two classes, the identity: what goes in comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2, bias=False)
        self.head.weight.data = torch.eye(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1)[:, :2])


def learner(module: nn.Module) -> Learner:
    return Learner(module, torch.optim.SGD(module.parameters(), lr=0.1))


class Grey:
    kind = Image((1, 8, 8))
    shape = (1, 8, 8)
    classes = 2


def test_generator_loss_is_the_sum_of_5() -> None:
    """(5) by hand: logits (ln 3, 0) and (0, ln 3) are predictions (.75, .25) and (.25, .75).

    Their mean is (.5, .5): L_IE = ln .5 = −.693147. L_OH = −ln .75 = .287682. Features ((1, −3), (2, 2)): L_A = −2.
    L_G = −.693147 + .1·.287682 − .1·2 = −.864379. The authors' L_IE is 1 + (−ln 2)/ln 2 = 0: L_G = −.171232.
    """
    ln3 = float(torch.log(torch.tensor(3.0)))
    teacher_logits = torch.tensor([[ln3, 0.0], [0.0, ln3]])
    features = torch.tensor([[1.0, -3.0], [2.0, 2.0]])
    loss = FedKF().generator_loss(Grey, teacher_logits, features, None, None)  # type: ignore[arg-type]
    assert float(loss) == pytest.approx(-0.864379, abs=1e-6)
    authors = FedKF(profile="authors").generator_loss(Grey, teacher_logits, features, None, None)  # type: ignore[arg-type]
    assert float(authors) == pytest.approx(-0.171232, abs=1e-6)


def test_student_loss_is_8() -> None:
    """(8) by hand: real logits (ln 3, 0) with label 1: CE = −ln .25 = 1.386294.

    The teacher says (.5, .5), the student's imagined logits (ln 3, 0) say (.75, .25):
    KL = .5 ln(.5/.75) + .5 ln(.5/.25) = .143841. With γ = 2: 1.386294 + .287682 = 1.673976.
    """
    ln3 = float(torch.log(torch.tensor(3.0)))
    x = torch.tensor([[[[ln3, 0.0]]]])
    real, imagined = FedKF(gamma=2.0).student_loss(learner(Linear()), x, torch.tensor([1]), x, torch.zeros(1, 2))
    assert (real + imagined).item() == pytest.approx(1.673976, abs=1e-6)


def test_one_student_pass_equals_two() -> None:
    """A module with BatchNorm is run separately; without, one pass must give the numbers of two."""
    module = Linear()
    x, imagined, teacher_logits = torch.randn(5, 1, 1, 2), torch.randn(3, 1, 1, 2), torch.randn(3, 2)
    y = torch.tensor([0, 1, 0, 1, 1])
    once = FedKF().student_loss(learner(module), x, y, imagined, teacher_logits)
    module.extra = nn.BatchNorm1d(2)  # never called, but there: the pass is split
    assert torch.allclose(
        torch.stack(once), torch.stack(FedKF().student_loss(learner(module), x, y, imagined, teacher_logits))
    )


def turn_of(method: FedKF, state: Imagination | None = None, **settings: Any) -> tuple[Any, Any, Any, Teaching]:
    plan = small_experiment(method, **settings)
    ready = stage(plan, Storage())
    down = Teaching(ready.env.initial(), {k: v + 0.1 for k, v in ready.env.initial().items()})
    before = {k: v.clone() for k, v in down.teacher.items()}  # type: ignore[union-attr]
    state, upload = turn(method, ready.env.at(0, 0), Party(ready.party(0).data), state, down)
    assert all(torch.equal(before[k], v) for k, v in down.teacher.items())  # type: ignore[union-attr]
    return ready, state, upload, down


def test_gradient_reaches_the_generator_through_the_frozen_teacher() -> None:
    method = small_method("fedkf")
    ready, state, upload, down = turn_of(method)
    fresh = method.init_client(ready.env.at(0, 0))
    moved = [k for k, v in state.generator.items() if not torch.equal(v, fresh.generator[k])]
    assert {"body.0.linear.weight", "body.2.weight"} <= set(moved)
    assert any(float(m["exp_avg"].abs().sum()) > 0 for m in state.memory.values())
    assert not same_bits(upload.weights, down.weights)


def test_without_gamma_it_is_fedavg_to_the_bit(runs: Path) -> None:
    start(small_experiment(small_method("fedavg")), out=runs, name="a")
    start(small_experiment(small_method("fedkf", gamma=0)), out=runs, name="b")
    a, b = (RunDir.open(runs / n).latest()[0] for n in "ab")
    assert a is not None
    assert b is not None
    assert same_bits(a.server, b.server)


def test_generator_and_its_adam_survive_rounds_resume_and_workers(runs: Path) -> None:
    """Adam counts its steps: after two turns of E epochs of ⌈n/B⌉ batches each the counter holds both."""
    plan = small_experiment(small_method("fedkf"), active=1.0, clients=2)
    start(replace(plan, rounds=1), out=runs, name="a")
    resume(runs / "a", rounds=2, workers="2")
    state, _ = RunDir.open(runs / "a").latest()
    assert state is not None
    sizes = stage(plan, Storage()).env.sizes
    for client, size in enumerate(sizes):
        assert float(state.clients[client].memory["0"]["step"]) == 2 * -(-size // 32)


def test_minus_sends_no_teacher_and_noise_learns_nothing() -> None:
    plan = small_experiment(small_method("fedkf-minus"))
    ready = stage(plan, Storage())
    down = plan.method.download(ready.env.at(0, 0), plan.method.init_server(ready.env))
    assert down.teacher is None
    _, state, _, _ = turn_of(small_method("fedkf", generator="noise"))
    assert state.generator == {}


def test_authors_profile_counts_only_clients_seen_and_gives_all_the_same_steps() -> None:
    """Steps: E · (N_train // (K·B)); 319 training samples, 6 clients, batches of 32: max(1, 1) step an epoch."""
    method = small_method("fedkf", profile="authors", epochs=3)
    assert method.gather == Remember(start="seen")
    ready = stage(small_experiment(method), Storage())
    assert method.pace(ready.env).local_steps == 3 * max(1, sum(ready.env.sizes) // (6 * 32))
    _, state, _, _ = turn_of(method)
    assert state.memory == {}, "the first round is plain cross-entropy"


def test_without_memory_the_active_model_teaches() -> None:
    plan = small_experiment(small_method("fedkf", gather=Everyone()))
    ready = stage(plan, Storage())
    assert plan.method.download(ready.env.at(0, 0), plan.method.init_server(ready.env)).teacher is None


@pytest.mark.parametrize(
    ("settings", "rate"), [({}, 0.02), ({"generator": "dafl"}, 1e-3), ({"generator_lr": 0.3}, 0.3)]
)
def test_a_generator_learns_at_its_own_rate_unless_told(settings: dict[str, Any], rate: float) -> None:
    method = FedKF(**settings)
    generator = build_generator(method.generator, Image((1, 8, 8), (0.5,), (0.5,)), 5, channels=4)
    assert method.adam(generator).lr == rate


def test_on_colour_the_authors_generator_meets_a_student_that_has_stepped_and_a_constant_teacher() -> None:
    """By hand: −γ KL(teacher ‖ student) is added with the teacher detached, so that only the student's view has a
    gradient; and the student is the one after its step, which the paper's profile would take afterwards."""

    class Colour(Grey):
        kind = Image((3, 8, 8))
        shape = (3, 8, 8)

    method = FedKF(profile="authors", gamma=2.0, lambda1=0.0, lambda2=0.0)
    assert method.rivals(Colour)  # type: ignore[arg-type]
    assert not method.rivals(Grey)  # type: ignore[arg-type]
    teacher_logits = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    imagined = torch.tensor([[0.3, 0.1], [0.2, 0.4]], requires_grad=True)
    student = learner(Linear())
    loss = method.generator_loss(Colour, teacher_logits, teacher_logits, student, imagined)  # type: ignore[arg-type]
    plain_loss = method.generator_loss(Grey, teacher_logits, teacher_logits, student, imagined)  # type: ignore[arg-type]
    p, q = torch.log_softmax(teacher_logits, -1), torch.log_softmax(imagined, -1)
    divergence = (p.exp() * (p - q)).sum(-1).mean()
    assert loss.item() == pytest.approx((plain_loss - 2 * divergence).item(), abs=1e-6)
    rivalry = torch.autograd.grad(loss - plain_loss, (teacher_logits, imagined), allow_unused=True)
    assert rivalry[0] is None or not rivalry[0].abs().sum()
    assert rivalry[1].abs().sum() > 0


def test_the_generator_learns_from_every_second_batch_only_if_told_so() -> None:
    """Five batches, numbered from 0: the generator learns in 0, 2 and 4, so its Adam has counted three steps."""
    method = small_method("fedkf", local_steps=5, generator_every=2)
    _, state, upload, down = turn_of(method)
    assert float(state.memory["0"]["step"]) == 3
    assert not same_bits(upload.weights, down.weights)


def test_a_lesson_that_teaches_no_generator_keeps_nothing_for_a_backward_pass() -> None:
    method = small_method("fedkf", generator_every=2)
    ready, state, _, down = turn_of(method)
    env = ready.env.at(0, 0)
    teacher, learner = env.module(down.teacher), method.generator_learner(env, state)
    first, second = (method.lesson(env, teacher, learner, env.stream("noise"), number) for number in (0, 1))
    assert (first.learns, second.learns) == (True, False)
    assert first.logits.requires_grad
    assert not second.logits.requires_grad
    assert torch.equal(first.imagined, second.imagined), "the same noise gives the same images"


@pytest.mark.parametrize(("share", "batch", "count"), [(1.0, 32, 32), (0.5, 32, 16), (0.01, 32, 2), (1.0, 1, 2)])
def test_the_imagined_batch_is_a_share_of_the_batch_and_two_at_least(share: float, batch: int, count: int) -> None:
    method = small_method("fedkf", imagined_batch=share, batch=batch, generator="noise")
    env = stage(small_experiment(method), Storage()).env.at(0, 0)
    assert len(method.imagine(env, None, env.stream("noise"))) == count


def test_a_stationary_generator_learns_on_the_server_and_stays_as_it_is_on_clients(runs: Path) -> None:
    """One generator goes down to all, nobody keeps one; between rounds it comes to please ŵ, by (5)."""
    method = StationaryFedKF(epochs=1, batch=32, lr=0.1, generator_steps=30)
    plan = small_experiment(method)
    result = start(plan, out=runs, name="a")
    state, _ = RunDir.open(runs / "a").latest()
    assert state is not None
    assert all(not client.generator for client in state.clients.values())
    assert set(result.bytes_by_field()["down"]) == {"weights", "teacher", "generator"}
    assert set(result.bytes_by_field()["up"]) == {"weights"}

    env = stage(plan, Storage()).env
    teacher = frozen(env.module(method.gather.models(env, state.server.memory)["overall"]))

    def loss(generator: Any) -> float:
        learner = method.generator_learner(env, Drawing(generator, {}))
        lesson = method.lesson(env, teacher, learner, torch.Generator().manual_seed(1), 0)
        return float(method.excitement(class_entropy(lesson.logits), lesson.logits, lesson.features).detach())

    assert loss(state.server.generator) < loss(method.first_generator(env)) - 0.05
