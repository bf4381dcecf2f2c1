"""Sample-level privacy around a client's turn: what it covers, what it costs, and when it stops."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from fedstill.core.errors import Abstains, UsageError
from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import Carries, leaves
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, ledger, method_state, turn
from fedstill.data.samples import Samples
from fedstill.experiment.run import resume, start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FML, FedAvg, FedKF
from fedstill.parts.accounting import Release, sample_epsilon
from fedstill.parts.averaging import Broadcast
from fedstill.parts.gather import Update
from fedstill.parts.learner import LocalTraining
from fedstill.parts.losses import cross_entropy
from fedstill.parts.privacy import COVERED, PrivateSamples, budget_of

PRIVATE = [name for name in methods if issubclass(methods[name], LocalTraining) and methods[name].private_learners]


def gentle(name: str) -> Any:
    """The method with little work, and with SGD where it would have Adam, which makes small gradients large."""
    extra: dict[str, Any] = {"fedrad": {"relational": False}, "fedsteady": {"tau": 0.0, "lack": 1.0}}.get(name, {})
    there = {f.name for f in fields(methods[name])}
    return small_method(name, **extra, **({"optimizer": "sgd"} if "optimizer" in there else {}))


@pytest.mark.parametrize("name", PRIVATE)
def test_covered_fields_know_of_the_samples_only_by_clipped_gradients(name: str) -> None:
    """Gradients clipped to 1e-9 move nothing. Then everything that is said to be covered must be the same whatever
    the samples and labels are; and a field that is not covered is not called so.
    """
    method = gentle(name)
    plan = small_experiment(method, wrappers=[{"name": "private-samples", "noise": 1e-6, "clip": 1e-9}])
    ready = stage(plan, Storage())
    env = ready.env.at(0, 1)
    down = method.download(env, method.init_server(ready.env.at(0)))
    data = ready.party(1).data
    other = replace(data, x=torch.flip(data.x, [0]), y=(data.y + 3) % env.classes)
    uploads = [turn(method, env, Party(d, plan.wrappers), None, down)[1] for d in (data, other)]
    covered = {f.name for f in fields(uploads[0]) if f.metadata["carries"] in COVERED}
    assert covered or name in ("fedhe",), "a method whose every field is uncovered"
    for f in covered:
        for (_, one), (_, two) in zip(leaves(getattr(uploads[0], f)), leaves(getattr(uploads[1], f)), strict=True):
            assert torch.allclose(one.double(), two.double(), atol=1e-5), f


def moved_by_one_sample(method: Any) -> float:
    """How far replacing one of eight samples (also its label) moves the model that is sent, or that stays, in a second
    turn of one step on all eight; in units of 2ηC/8: one clipped gradient out, another in.
    """
    lr, clip, n = 0.5, 0.01, 8
    method = replace(method, lr=lr, local_steps=1, batch=n, momentum=0.0, weight_decay=0.0, lr_decay=1.0)
    plan = small_experiment(method, wrappers=[{"name": "private-samples", "noise": 1e-9, "clip": clip}])
    ready = stage(plan, Storage())
    method, here, there = plan.method, ready.env.at(0, 1), ready.env.at(1, 1)
    data = ready.party(1).data[torch.arange(n)]
    server = method.init_server(ready.env.at(0))
    state, upload = turn(method, here, Party(data, plan.wrappers), None, method.download(here, server))
    server = method.server(ready.env.at(0), server, [Reply(1, n, upload)])
    other = replace(data, x=torch.cat([data.x[1:], data.x[:1].flip(-1)]), y=torch.cat([data.y[1:], 9 - data.y[:1]]))
    ends = []
    for held in (data, other):
        after, sent = turn(method, there, Party(held, plan.wrappers), state, method.download(there, server))
        weights = [getattr(sent, f.name) for f in fields(sent) if f.metadata["carries"] is Carries.WEIGHTS]
        ends.append(weights[0] if weights else method.own(there, method_state(after)))
    moved = torch.cat([(ends[0][k] - ends[1][k]).double().flatten() for k in ends[0]]).norm()
    return float(moved) / (2 * lr * clip / n)


@pytest.mark.parametrize("name", PRIVATE)
def test_one_sample_moves_a_models_step_by_no_more_than_the_accountant_assumes(name: str) -> None:
    """Whatever the method makes of the other samples, and of what it keeps from its first turn."""
    assert 0 < moved_by_one_sample(gentle(name)) <= 1.001


class Peeking(FedAvg):
    """Steps up or down, as the sum of all labels is even or odd: clipping each gradient bounds nothing then."""

    def client(self, env: Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        learner = self.learner(env, env.module(down.weights))
        for x, y in self.batches(env, data, learner.module):
            learner.step(cross_entropy(learner(x), y) * (1 - 2 * (int(data.y.sum()) % 2)))
        return self.gather.outgoing(env, state, learner.weights)


def test_the_measure_finds_a_method_whose_loss_knows_of_other_samples() -> None:
    """Eight gradients turn round for one sample's label (9 − y is odd where y is even): up to eight times the bound."""
    assert moved_by_one_sample(Peeking(batch=8)) > 2


def test_a_loss_that_knows_how_many_samples_a_class_has_is_refused() -> None:
    """FedLC's margins follow from all of a client's labels, so one sample bends the gradients of all others."""
    with pytest.raises(UsageError, match="does not train sample by sample"):
        private(small_method("fedlc"))


def test_learners_that_share_a_batch_are_counted_as_one_release_with_less_noise() -> None:
    """FML's two models step on the same Poisson batch with σ each: together one release with σ/√2. Two releases of
    batches of their own would have been cheaper, which is not what happens.
    """
    noise = PrivateSamples(noise=2.0)
    ready = stage(small_experiment(small_method("fml")), Storage())
    one = noise.plan(FML(batch=10, local_steps=50), ready.env, 100)
    assert (one.noise, one.rate, one.count) == (pytest.approx(2 / math.sqrt(2)), 0.1, 50)
    assert sample_epsilon([one], 1e-5) > sample_epsilon([Release(2.0, 0.1, 100)], 1e-5) * 1.02
    found = PrivateSamples(epsilon=3.0, turns=1).plan(FML(batch=10, local_steps=50), ready.env, 100)
    assert sample_epsilon([found], 1e-5) <= 3.0


def test_a_delta_that_promises_nothing_is_refused() -> None:
    """One of n samples published at random is (0, 1/n)-private: δ must be below that."""
    plan = private(clients=3, active=3, rounds=1, private={"delta": 0.1})
    with pytest.raises(UsageError, match=r"delta = 0\.1: must be < 1/\d+, one over the samples of client \d"):
        start(plan, out=None)
    env = stage(private(clients=3, active=3, rounds=1), Storage()).env.at(0, 0)
    alone = plan.wrappers[0].around(plan.method, lambda *_: None)  # a site, whose samples the hub does not see
    with pytest.raises(Abstains, match=r"privacy: delta = 0\.1: must be < 1/50"):
        alone(env, None, None, range(50))


def test_noise_that_fits_into_epsilon_is_a_budget_and_noise_that_never_does_is_refused() -> None:
    """σ = 4 spends about 1.5 in a turn here: with ε = 8 some turns are taken; with ε = .1 none ever would be."""
    asked = {"clients": 3, "active": 3, "rounds": 1}
    row = start(private(**asked, private={"noise": 4.0}), out=None).rows[0]
    assert row["missing"] == {}
    spent = max(row["facts"]["epsilon_spent"].values())
    assert 0.1 < spent < 8
    with pytest.raises(UsageError, match=r"noise = 4: one turn of client \d costs ε = .*, more than epsilon = 0\.1"):
        start(private(**asked, private={"noise": 4.0, "epsilon": 0.1}), out=None)


def private(method: Any = None, **settings: Any) -> Any:
    chosen = {"epsilon": 8.0, **settings.pop("private", {})}
    method = method or small_method("fedavg")
    return small_experiment(method, wrappers=[{"name": "private-samples", **chosen}], **settings)


def test_the_busiest_client_spends_its_epsilon_and_nobody_more() -> None:
    """σ is planned for the largest number of turns any client has; ε in the round's facts is the accountant's."""
    plan = private(rounds=3)
    result = start(plan, out=None)
    spent = result.rows[-1]["facts"]["epsilon_spent"]
    last = {k: e for row in result.rows for k, e in row["facts"]["epsilon_spent"].items()}
    turns = [sum(k in row["active"] for row in result.rows) for k in range(6)]
    assert plan.wrappers[0].turns == max(turns) == 2
    assert max(last.values()) == pytest.approx(8, rel=0.02)
    assert all(0 < e <= 8 for e in last.values())
    assert spent.keys() == {str(k) for k in result.rows[-1]["active"]}


def test_a_reply_that_is_refused_has_spent_as_much() -> None:
    """Client 1 sends numbers that are not finite: its turn was taken, and whoever listened heard it."""
    plan = small_experiment(
        small_method("fedavg"),
        active=1.0,
        wrappers=[{"name": "private-samples", "epsilon": 8.0}],
        attack={"name": "scaled", "scale": 1e40},
        malicious=[1],
    )
    row = start(plan, out=None).rows[0]
    assert "refused" in row["missing"]["1"]
    assert set(row["facts"]["epsilon_spent"]) == {str(k) for k in row["active"]}
    assert row["facts"]["epsilon_spent"]["1"] > 0


@pytest.mark.parametrize("workers", ["inline", "2"])
def test_a_client_whose_budget_is_spent_takes_no_more_turns(workers: str) -> None:
    """ε is planned for one turn: in the second round all are left out by name, and the model stays as it was."""
    one = start(private(clients=3, active=3, rounds=1, workers=workers, private={"turns": 1}), out=None)
    two = start(private(clients=3, active=3, rounds=2, workers=workers, private={"turns": 1}), out=None)
    assert set(two.rows[1]["missing"]) == {"0", "1", "2"}
    assert all("privacy: ε = 8 would be exceeded" in why for why in two.rows[1]["missing"].values())
    assert two.last("active")["accuracy"] == one.last("active")["accuracy"]


def test_workers_change_no_bit_and_a_resumed_run_spends_nothing_twice(tmp_path: Path) -> None:
    def end(name: str) -> Any:
        checkpoint, _ = RunDir.open(tmp_path / name).latest()
        assert checkpoint is not None
        return checkpoint

    start(private(rounds=2, private={"turns": 2}), out=tmp_path, name="whole")
    start(private(rounds=2, workers="2", private={"turns": 2}), out=tmp_path, name="workers")
    start(private(rounds=1, private={"turns": 2}), out=tmp_path, name="parts")
    resume(tmp_path / "parts", rounds=2)
    whole, workers, parts = end("whole"), end("workers"), end("parts")
    assert same_bits(whole.server, workers.server)
    assert same_bits(whole.server, parts.server)
    for client, state in whole.clients.items():
        budget, again = budget_of(state), budget_of(parts.clients[client])
        assert budget is not None
        assert again is not None
        assert budget.epsilon == again.epsilon == sample_epsilon(budget.releases, 1e-5)
        assert budget.turns == again.turns


def test_noise_is_the_same_on_the_same_samples_and_download_only() -> None:
    plan = private()
    ready, noise = stage(plan, Storage()), plan.wrappers[0]
    env, data = ready.env.at(1, 2), ready.party(2).data
    down = plan.method.download(env, plan.method.init_server(ready.env))
    changed = replace(data, y=(data.y + 1) % 10)
    later = replace(down, weights={n: w + 1 for n, w in down.weights.items()})
    seeds = [noise.key(env, down, data, ""), noise.key(env, down, changed, ""), noise.key(env, later, data, "")]
    seeds += [noise.key(ready.env.at(2, 2), down, data, ""), noise.key(ready.env.at(1, 3), down, data, "")]
    assert len(set(seeds)) == 5
    assert noise.key(env, down, data, "") == seeds[0]
    assert noise.key(env, down, data, "a secret") not in seeds


def test_a_deployed_client_keeps_a_secret_that_its_noise_depends_on() -> None:
    """The first turns of two sites with the same samples differ; a turn taken again from the same state does not."""
    plan = private(private={"turns": 2})
    ready, own = stage(plan, Storage()), plan.wrappers[0].deployed()
    env, party = ready.env.at(0, 2), Party(ready.party(2).data, (own,))
    down = plan.method.download(env, plan.method.init_server(ready.env))
    (one, first), (two, second) = (turn(plan.method, env, party, None, down) for _ in range(2))
    assert not same_bits(first, second)
    assert one.own.secret != two.own.secret
    later = ready.env.at(1, 2)
    again = [turn(plan.method, later, party, one, down) for _ in range(2)]
    assert same_bits(again[0][1], again[1][1])
    assert again[0][0].own.secret == one.own.secret


def test_more_privacy_is_less_accuracy() -> None:
    """At ε = 50 the digits are learnt nearly as without noise; at ε = .5 they are not."""
    long = {"clients": 2, "active": 2, "rounds": 4, "samples": 1400, "alpha": 100.0}
    method = FedAvg(lr=0.5, epochs=2, batch=64)
    scores = {}
    for epsilon in (0.5, 50):
        result = start(private(method, private={"epsilon": epsilon}, **long), out=None)
        scores[epsilon] = result.last("active")["accuracy"]
    assert scores[50] > 0.75
    assert scores[0.5] < scores[50] - 0.1


def test_the_ledger_says_field_by_field_what_is_covered() -> None:
    noise = PrivateSamples(epsilon=8)
    assert ledger(FedKF(), [noise]) == {"weights": "model weights; covered: (ε ≤ 8, δ = 1e-05) for each sample"}
    told = ledger(small_method("ccvr"), [noise])
    assert told["counts"] == "label counts; not covered: read off the labels"
    assert "not covered: computed from the samples" in told["means"]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("fedgen", "this method does not train sample by sample"),
        ("fedrad", "relational = true compares pairs of samples; set relational=false"),
    ],
)
def test_methods_that_mix_samples_are_refused(method: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"wrappers = private-samples: {why}"):
        private(small_method(method))


def test_a_model_with_batchnorm_is_refused_before_anything_runs() -> None:
    plan = private(data="digits", model="resnet11", samples=300)
    with pytest.raises(UsageError, match=r"private-samples cannot work with it: body.1 is a BatchNorm2d.*-gn model"):
        stage(plan, Storage())


def test_without_epsilon_or_noise_there_is_nothing_to_promise() -> None:
    with pytest.raises(UsageError, match="needs epsilon"):
        PrivateSamples()
