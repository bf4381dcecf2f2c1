"""FedDistill+: the loss and the class means by hand, with and without weights."""

from math import log

import pytest
import torch
from smallest import same_bits, small_experiment

from fedstill.core.errors import UsageError
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, FedDistillPlus
from fedstill.methods.class_logits import MeanLogitsAndWeights, Shared
from fedstill.methods.fedhe import ClassWisdom, MeanLogits, fused
from fedstill.parts.averaging import Broadcast
from fedstill.parts.learner import predict
from fedstill.parts.robust import Krum


def test_the_loss_by_hand():
    """Class 0 has global logits of (¾,¼), class 1 none. Two even samples, one of each: CE = ln 2 = .693147; KL of the
    first .130812, of the second nothing: mean .065406. With γ = 2: .693147 + .130812 = .823959.
    """
    out, y = torch.zeros(2, 2), torch.tensor([0, 1])
    logits, known = torch.tensor([[log(3), 0.0], [9.0, 9.0]]), torch.tensor([True, False])
    assert FedDistillPlus(gamma=2.0).form.loss(out, y, logits, known).item() == pytest.approx(0.823959, abs=1e-6)
    assert FedDistillPlus().form.loss(out, y, logits, torch.zeros(2).bool()).item() == pytest.approx(log(2))


def test_the_server_averages_over_the_clients_that_have_a_class():
    """Class 0: (1,0) and (3,0) make (2,0). Class 1: only the second has it. Class 2: nobody has it, the old stays."""
    old = torch.tensor([[7.0, 7.0, 7.0]] * 3)
    first = MeanLogits(torch.diag(torch.tensor([1.0, 0, 0])), torch.tensor([True, False, False]))
    second = MeanLogits(torch.diag(torch.tensor([3.0, 4.0, 0])), torch.tensor([True, True, False]))
    made = fused(ClassWisdom(old, torch.tensor([False, False, True])), [first, second])
    assert made.logits.tolist() == [[2, 0, 0], [0, 4, 0], [7, 7, 7]]
    assert made.known.tolist() == [True, True, True]
    assert fused(ClassWisdom(old, torch.zeros(3).bool()), [first, second]).known.tolist() == [True, True, False]


def test_a_client_sends_the_mean_logits_of_its_classes():
    """With next to no learning rate they are the model's mean logits on the client's samples, class by class."""
    method = FedDistillPlus(lr=1e-30, batch=16, epochs=2)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 1), ready.party(1).data
    state, upload = method.client(
        env, method.init_client(env), method.download(env, method.init_server(env.at(0))), data
    )
    out = predict(env.module(env.initial()), data.inputs())
    assert upload.seen.tolist() == [bool((data.y == c).any()) for c in range(10)]
    assert 1 < upload.seen.sum() < 10
    for c in range(10):
        mean = out[data.y == c].mean(0) if upload.seen[c] else torch.zeros(10)
        assert torch.allclose(upload.logits[c], mean, atol=1e-5)
    assert same_bits(state.weights, upload.weights)


def test_without_distillation_it_is_fedavg_to_the_bit():
    method, plain = FedDistillPlus(gamma=0.0, lr=0.1, batch=32, epochs=1), FedAvg(lr=0.1, batch=32, epochs=1)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(1, 2), ready.party(2).data
    server = method.init_server(env.at(0))
    server = Shared(ClassWisdom(server.wisdom.logits, ~server.wisdom.known), server.weights, server.memory)
    _, upload = method.client(env, method.init_client(env), method.download(env, server), data)
    _, expected = plain.client(env, None, Broadcast(server.weights), data)
    assert same_bits(upload.weights, expected.weights)


def test_with_weights_it_reports_the_averages_and_every_clients_own():
    result = start(small_experiment(FedDistillPlus(lr=0.1, batch=32), rounds=2), out=None)
    assert result.models == ["active", "overall", "personal"]
    assert set(result.bytes_by_field()["up"]) == {"logits", "seen", "weights"}


def test_without_weights_networks_may_differ_and_only_class_logits_travel():
    """Four active in a round send 10 × 10 logits of four bytes and ten flags, and nothing else; per-class tracking of
    a method without a global model tracks nothing, and does not fail.
    """
    method = FedDistillPlus(share_weights=False, epochs=1, batch=64)
    plan = small_experiment(method, models=("mlp", "lenet5"), clients=4, active=1.0, per_class=True)
    result = start(plan, out=None)
    assert result.models == ["personal"]
    assert result.rows[0]["bytes"]["up"] == {"logits": 4 * 400, "seen": 4 * 10}
    assert set(result.rows[0]["bytes"]["down"]) == {"logits", "known"}
    assert (method.uploads(), FedDistillPlus().uploads()) == (MeanLogits, MeanLogitsAndWeights)
    assert len(result.last("personal")["accuracy_per_client"]) == 4


def test_wrong_settings_are_told():
    with pytest.raises(UsageError, match="feddistill-plus averages weights, so all clients need one model"):
        small_experiment(FedDistillPlus(), models=("mlp", "lenet5"))
    with pytest.raises(
        UsageError, match="gather = krum: works on model weights; clients of this method send mean logits"
    ):
        small_experiment(FedDistillPlus(share_weights=False, gather=Krum()))
