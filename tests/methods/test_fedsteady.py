"""FedSteady: its loss by hand, what it is when parts are left out, who teaches, what it keeps."""

import dataclasses

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, softmax

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedDyn, FedSteady
from fedstill.methods.fedsteady import Guidance, Lacking
from fedstill.parts.calibration import log_shares
from fedstill.parts.gather import Remember, Update
from fedstill.parts.loudness import hushed


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
            teacher_logits = teacher(x)
        for i, label in enumerate(y.tolist()):
            others = [c for c in range(env.classes) if c != label]
            a, b = log_softmax(teacher_logits[i, others], -1), log_softmax(logits[i, others], -1)
            total = total + beta * softmax(teacher_logits[i], -1)[label] * (a.exp() * (a - b)).sum() / len(y)
        return total

    return loss


def test_the_shares_of_a_calibrated_client_by_hand():
    """Counts 8, 2, 0, s = .4: shares .48 + .4/3, .12 + .4/3, .4/3; τ = ½ takes their roots."""
    found = log_shares(torch.tensor([8, 2, 0]), 0.5, 0.4).double().exp()
    wanted = torch.tensor([0.6 * 0.8 + 0.4 / 3, 0.6 * 0.2 + 0.4 / 3, 0.4 / 3]).double().sqrt()
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


def test_a_turn_is_down_the_calibrated_loss_taught_and_bent_by_what_the_client_lacks():
    """Two steps on all samples on CE + κ β p(y) KL − κ α⟨d, θ⟩ + κ α/2 ‖θ − w‖²; then d loses the way that was gone.

    κ by hand: with s = .3 a class of a share below .3/C lacks, in proportion; over C − 1.
    """
    method = FedSteady(local_steps=2, batch=10**6, lr=0.5, alpha=0.7, tau=0.8, smoothing=0.3, beta=1.5, gamma=0.0)
    env, data, down = prepared(method)
    blank = method.init_client(env)
    before = dataclasses.replace(blank, gradient={n: 0.1 * torch.randn(t.shape) for n, t in blank.gradient.items()})
    state, upload = method.client(env, before, down, data)
    shares = [data.y.tolist().count(c) / len(data) for c in range(env.classes)]
    lack = sum(max(0.0, 1 - env.classes * share / 0.3) for share in shares) / (env.classes - 1)
    assert 0 < lack < 1
    assert upload.lack == pytest.approx(lack)
    own = own_loss(env, data, down, beta=1.5 * lack, tau=0.8, smoothing=0.3)

    def bent(student):
        loss, strength = own(student), 0.7 * lack
        for name, p in student.named_parameters():
            way = p - down.weights[name]
            loss = loss - strength * (before.gradient[name] * p).sum() + strength / 2 * way.square().sum()
        return loss

    for name, wanted in descended(env, down, [bent, bent], 0.5).items():
        torch.testing.assert_close(upload.weights[name], wanted, atol=1e-5, rtol=1e-4)
        if name in state.gradient:
            went = before.gradient[name] - (upload.weights[name] - down.weights[name])
            torch.testing.assert_close(state.gradient[name], went)


def test_imagined_samples_add_the_teachers_knowledge_on_them():
    """With plain noise in place of a generator: a quarter of a batch of 40 is 10 samples, and κ γ KL(ŵ ‖ student)."""
    method = FedSteady(
        local_steps=1, batch=40, lr=0.5, alpha=0.0, tau=0.0, beta=0.0, gamma=4.0, lack=0.5, generator="noise"
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


def test_a_step_carries_on_as_far_as_its_client_lacks_classes():
    """Four clients of 10 samples each; two step by 1 and by 3 from 0, κ = .5 and 1.

    s = −(10/40)(.5 · 1 + 1 · 3) = −.875, w = (1 + 3)/2 + .875 = 2.875. Then both step by 0: s stays, w = 2.875 + .875.
    """
    method = FedSteady(loudest=None)
    env = dataclasses.replace(stage(small_experiment(method), Storage()).env, sizes=(10, 10, 10, 10)).at(0)
    server = method.init_server(env)

    def answered(state, *steps):
        said = [({n: t + step for n, t in state.weights.items()}, lack) for step, lack in steps]
        return method.server(env, state, [Reply(k, 10, Lacking(*words)) for k, words in enumerate(said)])

    first = answered(server, (1.0, 0.5), (3.0, 1.0))
    second = answered(first, (0.0, 0.5), (0.0, 1.0))
    for name in first.correction:
        torch.testing.assert_close(first.correction[name], torch.full_like(first.correction[name], -0.875))
        torch.testing.assert_close(first.weights[name], server.weights[name] + 2.875)
        torch.testing.assert_close(second.weights[name], server.weights[name] + 3.75)


def test_a_client_cannot_lack_less_than_nothing_or_more_than_all():
    method = FedSteady()
    env = stage(small_experiment(method), Storage()).env.at(0, 0)
    told = {lack: method.objection(env, Lacking(env.form(), lack)) for lack in (0.0, 1.0, -0.1, 7.0, float("nan"))}
    assert told[0.0] is None
    assert told[1.0] is None
    assert told[7.0] == "lack = 7: must be from 0 to 1"
    assert all(list(told.values())[2:])


@pytest.mark.parametrize(
    ("other", "settings"),
    [
        (
            FedDyn(epochs=1, lr=0.1, alpha=0.03, gather=Remember(start="seen")),
            {"lack": 1.0, "beta": 0.0, "gamma": 0.0, "weighting": "clients"},
        ),
        (FedAvg(epochs=1, lr=0.1, gather=Remember(start="seen")), {"lack": 0.0}),
    ],
    ids=["FedDyn", "FedAvg"],
)
def test_without_its_parts_it_is_another_method_to_the_bit(runs, other, settings):
    bare = FedSteady(epochs=1, lr=0.1, tau=0.0, loudest=None, **settings)
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
    assert FedSteady().mixing() == "tau = 0.5 uses how many samples of each class there are; set tau=0 and a lack"
    assert FedSteady(tau=0.0).mixing() == "lack = none is read off the labels; set lack to a number from 0 to 1"
    assert FedSteady(tau=0.0, lack=1.0).mixing() is None


def stepping(*steps):
    """Replies of clients 0, 1, … whose only weight went so far from 1."""
    return [Reply(k, 10, Update({"w": torch.tensor([1.0 + step])})) for k, step in enumerate(steps)]


def test_a_loud_step_counts_the_less_the_longer_it_is():
    """Steps .5, −1, 1, 10 from 1: the lower median is 1, the bound 2; 10 becomes 2³/10² = .08, others stay."""
    lengths, heard = hushed(stepping(0.5, -1.0, 1.0, 10.0), {"w": torch.tensor([1.0])}, {}, 2.0)
    assert lengths == {0: 0.5, 1: 1.0, 2: 1.0, 3: 10.0}
    torch.testing.assert_close([float(r.upload.weights["w"]) for r in heard], [1.5, 0.0, 2.0, 1.08])


def test_a_round_of_liars_is_measured_by_what_others_sent_before():
    """Both of two steps are 30, four clients stepped 1 before: the lower median is 1, and 30 becomes 3³/30² = .03."""
    known = dict.fromkeys(range(2, 6), 1.0)
    _, heard = hushed(stepping(-30.0, -30.0), {"w": torch.tensor([1.0])}, known, 3.0)
    torch.testing.assert_close([float(r.upload.weights["w"]) for r in heard], [0.97, 0.97])


def test_the_steady_model_follows_the_active_one():
    """v is w after the first round that was answered, then ρ v + (1 − ρ) w."""
    method = FedSteady(alpha=0.0, inertia=0.75, loudest=None)
    env = stage(small_experiment(method), Storage()).env.at(0)
    server = method.init_server(env)

    def answered(state, shift):
        moved = {n: t + shift for n, t in state.weights.items()}
        return method.server(env, state, [Reply(0, 10, Update(moved))])

    first = answered(server, 1.0)
    second = answered(first, 1.0)
    for name, start_weight in server.weights.items():
        torch.testing.assert_close(first.steady[name], start_weight + 1)
        torch.testing.assert_close(second.steady[name], start_weight + 1.25)
    assert set(method.models(env, second)) == {"active", "overall", "steady"}


def test_clients_that_stand_still_silence_nobody():
    """Lengths 0, 0, 3, 4: the lower median of those that moved is 3; with c = 1 the step of 4 becomes 3³/4²."""
    replies, one = stepping(0.0, 0.0, 3.0, 4.0), {"w": torch.tensor([1.0])}
    _, heard = hushed(replies, one, {}, 1.0)
    torch.testing.assert_close([float(r.upload.weights["w"]) for r in heard], [1.0, 1.0, 4.0, 1 + 27 / 16])
    assert hushed(replies[:2], one, {}, 1.0)[1] == replies[:2], "nobody moved"


def test_steps_cannot_be_shortened_in_sums_that_clients_make():
    with pytest.raises(
        UsageError, match=r"slots = client adds up steps that loudest = 3 cannot shorten; use slots = server"
    ):
        FedSteady(lack=1.0, gather=Remember(slots="client"))
    assert FedSteady(lack=1.0, loudest=None, gather=Remember(slots="client")).loudest is None


def test_a_parameter_that_no_loss_reaches_stays_where_it_is():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(64, 10), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.used(x.flatten(1))

    for method in (FedSteady(epochs=1), FedDyn(epochs=1), FedDyn(epochs=1, max_norm=1.0)):
        ready = stage(small_experiment(method, model=Spare), Storage())
        env, data = ready.env.at(0, 0), ready.party(0).data
        down = method.download(env, method.init_server(env))
        _, upload = method.client(env, method.init_client(env), down, data)
        moved = {name for name, w in upload.weights.items() if not torch.equal(w, down.weights[name])}
        assert {name.rpartition(".")[2] for name in moved} == {"weight", "bias"}
