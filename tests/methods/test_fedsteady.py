"""FedSteady: its loss by hand, what it is when parts are left out, who teaches, what it keeps."""

import dataclasses

import pytest
import torch
from smallest import same_bits, small_experiment
from torch.nn.functional import cross_entropy, log_softmax, softmax

from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedDyn, FedSteady
from fedstill.methods.fedsteady import Guidance
from fedstill.parts.calibration import log_shares
from fedstill.parts.gather import Remember


def prepared(method):
    torch.manual_seed(1)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 0), ready.party(0).data
    start_weights = env.initial()
    teacher = {n: t + 0.3 * torch.randn(t.shape) if t.is_floating_point() else t for n, t in start_weights.items()}
    return env, data, Guidance(start_weights, teacher)


def descended(env, down, losses, rate):
    """Plain gradient descent on each of the losses in turn, from w."""
    student = env.module(down.weights)
    for loss in losses:
        student.zero_grad()
        loss(student).backward()
        with torch.no_grad():
            for p in student.parameters():
                p -= rate * p.grad
    return dict(student.state_dict())


def own_loss(env, data, down, beta, tau, smoothing):
    """Cross-entropy of logits + τ log share, and β p(y) KL over the other classes, written out sample by sample."""
    x, y = data.inputs(), data.y
    counts = torch.bincount(y, minlength=env.classes).double()
    margin = tau * ((1 - smoothing) * counts / counts.sum() + smoothing / env.classes).log().float()
    teacher = env.module(down.teacher).eval()

    def loss(student):
        logits = student(x)
        total = cross_entropy(logits + margin, y)
        with torch.no_grad():
            wisdom = teacher(x)
        for i, label in enumerate(y.tolist()):
            others = [c for c in range(env.classes) if c != label]
            a, b = log_softmax(wisdom[i, others], -1), log_softmax(logits[i, others], -1)
            total = total + beta * softmax(wisdom[i], -1)[label] * (a.exp() * (a - b)).sum() / len(y)
        return total

    return loss


def test_the_shares_of_a_calibrated_client_by_hand():
    """Counts 8, 2, 0, s = .4: shares .48 + .4/3, .12 + .4/3, .4/3; τ = ½ takes their roots."""
    found = log_shares(torch.tensor([8, 2, 0]), 0.5, 0.4).double().exp()
    wanted = torch.tensor([0.6 * 0.8 + 0.4 / 3, 0.6 * 0.2 + 0.4 / 3, 0.4 / 3]).double().sqrt()
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


def test_a_turn_without_imagination_is_down_the_bent_calibrated_trusted_loss():
    """Two steps on all samples on the loss above − α⟨d, θ⟩ + α/2 ‖θ − w‖²; then d loses the way that was gone."""
    method = FedSteady(local_steps=2, batch=10**6, lr=0.5, alpha=0.7, tau=0.8, smoothing=0.3, beta=1.5, gamma=0.0)
    env, data, down = prepared(method)
    blank = method.init_client(env)
    before = dataclasses.replace(blank, gradient={n: 0.1 * torch.randn(t.shape) for n, t in blank.gradient.items()})
    state, upload = method.client(env, before, down, data)
    own = own_loss(env, data, down, beta=1.5, tau=0.8, smoothing=0.3)

    def bent(student):
        loss = own(student)
        for name, p in student.named_parameters():
            loss = loss - 0.7 * (before.gradient[name] * p).sum() + 0.35 * (p - down.weights[name]).square().sum()
        return loss

    for name, wanted in descended(env, down, [bent, bent], 0.5).items():
        torch.testing.assert_close(upload.weights[name], wanted, atol=1e-5, rtol=1e-4)
        if name in state.gradient:
            went = before.gradient[name] - (upload.weights[name] - down.weights[name])
            torch.testing.assert_close(state.gradient[name], went)


def test_imagined_samples_add_the_teachers_knowledge_on_them():
    """With plain noise in place of a generator: a quarter of a batch of 40 is 10 samples, and γ KL(ŵ ‖ student)."""
    method = FedSteady(
        local_steps=1, batch=40, lr=0.5, alpha=0.0, tau=0.0, beta=0.0, gamma=2.0, generator="noise", channels=None
    )
    env, data, down = prepared(method)
    _, upload = method.client(env, method.init_client(env), down, data)
    x, y = next(iter(method.batches(env, data, env.module(down.weights))))
    imagined = env.kind.noise(10, env.stream("noise"))
    teacher = env.module(down.teacher).eval()

    def loss(student):
        a, b = log_softmax(teacher(imagined).detach(), -1), log_softmax(student(imagined), -1)
        return cross_entropy(student(x), y) + 2.0 * (a.exp() * (a - b)).sum(-1).mean()

    for name, wanted in descended(env, down, [loss], 0.5).items():
        torch.testing.assert_close(upload.weights[name], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("other", "settings"),
    [
        (FedDyn(epochs=1, lr=0.1, alpha=0.03, gather=Remember(start="seen")), {}),
        (FedAvg(epochs=1, lr=0.1, gather=Remember(start="seen")), {"alpha": 0.0, "weighting": "samples"}),
    ],
    ids=["FedDyn", "FedAvg"],
)
def test_without_its_parts_it_is_another_method_to_the_bit(runs, other, settings):
    bare = FedSteady(epochs=1, lr=0.1, tau=0.0, beta=0.0, gamma=0.0, **settings)
    for name, method in {"other": other, "bare": bare}.items():
        start(small_experiment(method, rounds=3), out=runs, name=name)
    one, two = (RunDir.open(runs / name).latest()[0].server for name in ("other", "bare"))
    assert same_bits(one.weights, two.weights)


def test_a_teacher_that_is_wrong_about_a_sample_is_not_believed_there():
    """The pull of the teacher's other classes is weighted by its probability of the label: 0 where it is 0."""
    method = FedSteady(beta=1.0, tau=0.0)
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    wrong = torch.nn.Module()
    wrong.forward = lambda x: torch.tensor([[-200.0, 5.0, 0.0]])  # type: ignore[method-assign]
    right = torch.nn.Module()
    right.forward = lambda x: torch.tensor([[200.0, 5.0, 0.0]])  # type: ignore[method-assign]
    plain = cross_entropy(logits, torch.tensor([0]))
    margin = torch.zeros(3)
    assert method.own_loss(logits, torch.tensor([0]), margin, wrong, logits) == plain
    assert method.own_loss(logits, torch.tensor([0]), margin, right, logits) > plain + 1


def test_clients_never_seen_do_not_teach():
    """Before anybody answered ŵ is w⁰; later it is made of those who did, whatever the others' initial weights."""
    method = FedSteady()
    assert method.gather == Remember(start="seen")
    ready = stage(small_experiment(method), Storage())
    env = ready.env.at(0)
    down = method.download(env, method.init_server(env))
    assert same_bits(down.teacher, down.weights)


def test_it_is_not_private_while_it_uses_label_counts():
    assert FedSteady().mixing() == "tau = 0.5"
    assert FedSteady(tau=0.0).mixing() is None
