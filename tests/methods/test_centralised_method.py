"""Centralised: all samples in one place, the clients' tests where they were, and clearly no federation."""

import pytest
import torch
from smallest import same_bits, small_experiment

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import Watcher, start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import Centralised, FedAvg
from fedstill.parts.averaging import Broadcast


def test_one_party_has_everybodys_samples_and_the_tests_stay() -> None:
    """The same split as FedAvg's: 6 local tests, equal to the sample; the one party has the union of the shares."""
    federated, whole = (stage(small_experiment(m), Storage()) for m in (FedAvg(), Centralised()))
    assert whole.env.sizes == (sum(federated.env.sizes),)
    everybody = torch.cat([federated.party(k).data.x.flatten(1) for k in range(6)])
    mine = whole.party(0).data.x.flatten(1)
    assert sorted(mine.tolist()) == sorted(everybody.tolist())
    assert torch.equal(whole.exam.pool.x, federated.exam.pool.x)
    assert [t.tolist() for t in whole.exam.local] == [t.tolist() for t in federated.exam.local]
    assert (whole.counts == federated.counts).all()


def test_a_turn_is_fedavgs_and_the_server_takes_it_as_it_is() -> None:
    """FedAvg of one client averages one model: from the same w and samples both servers hold the same bits."""
    single, whole = FedAvg(lr=0.1, epochs=2), Centralised(lr=0.1, epochs=2)
    ready = stage(small_experiment(whole), Storage())
    env, data = ready.env.at(0, 0), ready.party(0).data
    servers = []
    for method in (single, whole):
        server = method.init_server(env)
        _, upload = method.client(env, method.init_client(env), method.download(env, server), data)
        servers.append(method.server(env, server, [Reply(0, len(data), upload)]))
    assert same_bits(servers[0].weights, servers[1].weights)


def test_momentum_goes_on_between_rounds() -> None:
    """Two rounds of one full-batch step: w − lr g₁ − lr (g₂ + .9 g₁), unlike with a fresh optimiser."""
    method = Centralised(lr=0.1, momentum=0.9, local_steps=1, batch=10**6)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 0), ready.party(0).data
    w0 = env.initial()
    state, once = method.client(env, method.init_client(env), Broadcast(w0), data)
    _, twice = method.client(env, state, Broadcast(once.weights), data)
    _, fresh = method.client(env, method.init_client(env), Broadcast(once.weights), data)
    for name in w0:
        pushed = fresh.weights[name] + 0.9 * (once.weights[name] - w0[name])
        torch.testing.assert_close(twice.weights[name], pushed, atol=1e-6, rtol=1e-4)


def test_it_is_told_that_this_is_no_federation(runs) -> None:
    notes: list[str] = []

    class Ear(Watcher):
        def note(self, text: str) -> None:
            notes.append(text)

    result = start(small_experiment(Centralised(lr=0.1), active=1.0, rounds=4), out=runs, name="whole", watcher=Ear())
    told = [note for note in notes if "no federation" in note]
    assert len(told) == 1
    assert told[0].startswith("centralised: all ")
    assert result.models == ["centralised"]
    assert len(result.last("centralised")["accuracy_per_client"]) == 6
    assert all(row["active"] == [0] for row in result.rows)
    assert Centralised.leaves_client() == {"weights": "everything: all samples are in one place"}
    assert "no federation" in str(RunDir.open(runs / "whole").read("partition.json")["notes"])


def test_it_learns_what_unequal_clients_do_not() -> None:
    """α = .1: the average of one round's unequal clients is far behind the same epochs over everything."""
    settings = {"alpha": 0.1, "rounds": 3, "samples": 800}
    whole = start(small_experiment(Centralised(lr=0.1, epochs=3), **settings), out=None)
    split = start(small_experiment(FedAvg(lr=0.1, epochs=6), **settings), out=None)
    assert whole.last("centralised")["accuracy"] > 0.75
    assert whole.last("centralised")["accuracy"] > split.last("active")["accuracy"] + 0.05


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"transport": "flower"}, "transport = flower: centralised has all data in one place, it cannot be deployed"),
        ({"attack": "label-flip", "malicious": "0.5"}, "attack = label-flip: centralised has no clients"),
        ({"models": "mlp,lenet5"}, "models = mlp, lenet5: centralised"),
    ],
)
def test_what_needs_clients_is_refused(settings: dict[str, str], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        small_experiment(Centralised(), **settings)
