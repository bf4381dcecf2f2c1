"""CCVR: the clients' statistics add up, virtual features follow them, and only the head changes."""

import itertools

import torch
from smallest import small_experiment

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import CCVR
from fedstill.methods.ccvr import Described, describe, features_of, pooled, virtual_features
from fedstill.parts.learner import predict


def test_a_class_by_hand():
    """(0, 0), (2, 0), (1, 3): mean (1, 1), covariance diag(1, 3) over n − 1. One sample alone has no spread."""
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 7.0], [1.0, 3.0]])
    means, covariances, counts = describe(features, torch.tensor([1, 1, 2, 1]), 3)
    assert counts.tolist() == [0, 3, 1]
    assert means.tolist() == [[0, 0], [1, 1], [5, 7]]
    assert torch.allclose(covariances[1], torch.diag(torch.tensor([1.0, 3.0])))
    assert not covariances[2].any()


def test_pooled_is_what_one_party_with_all_samples_would_say():
    """Three clients: classes that one of them lacks, or has a single sample of, included; class 3 nobody has."""
    stream = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 5, generator=stream), torch.randint(3, (40,), generator=stream)
    features += labels.unsqueeze(1)
    owner = torch.randint(3, (40,), generator=stream)
    owner[labels == 2] = 0
    owner[(labels == 1).nonzero()[0]] = 2
    parts = [describe(features[owner == k], labels[owner == k], 4) for k in range(3)]
    assert any(0 in part[2][:3] for part in parts)
    for together, alone in zip(pooled(parts), describe(features, labels, 4), strict=True):
        assert torch.allclose(together, alone.double(), atol=1e-5)


def test_virtual_features_follow_the_classes():
    means = torch.tensor([[0.0, 0.0], [10.0, -5.0]], dtype=torch.float64)
    flat = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # rank 1: both features move together
    covariances = torch.stack([flat, torch.diag(torch.tensor([4.0, 0.25], dtype=torch.float64))])
    made = virtual_features(means, covariances, 4000, torch.Generator().manual_seed(1))
    first, second = made[:4000], made[4000:]
    assert torch.allclose(first[:, 0], first[:, 1], atol=1e-4)
    assert torch.allclose(second.mean(0).double(), means[1], atol=0.15)
    assert torch.allclose(second.T.cov().double(), covariances[1], atol=0.3)


def test_a_head_that_leans_to_one_class_is_set_right_and_the_rest_stays():
    method = CCVR(lr=0.1, epochs=4, head_epochs=20, head_lr=0.05)
    ready = stage(small_experiment(method, alpha=100.0), Storage())
    env = ready.env
    server = method.init_server(env.at(0))
    for turn in range(2):
        replies = []
        for k in range(3):
            here = env.at(turn, k)
            _, upload = method.client(here, None, method.download(here, server), ready.party(k).data)
            replies.append(Reply(k, env.sizes[k], upload))
        server = method.server(env.at(turn), server, replies)
    leaning = dict(server.weights)
    bias = next(n for n in leaning if n.startswith("head") and n.endswith("bias"))
    leaning[bias] = leaning[bias] + 8 * torch.nn.functional.one_hot(torch.tensor(0), env.classes)
    module, data = env.module(leaning), ready.party(0).data
    told = describe(features_of(module, data.inputs()), data.y, env.classes)
    mended = method.calibrate(env, leaning, [told])
    moved = {name for name in leaning if not torch.equal(leaning[name], mended[name])}
    assert moved
    assert all(name.startswith("head") for name in moved)
    right = [(predict(env.module(w), data.inputs()).argmax(1) == data.y).double().mean() for w in (leaning, mended)]
    assert right[1] > right[0] + 0.2


def test_on_real_digits_of_differing_clients_the_new_head_is_better():
    """`calibrated` of a round comes from `active` of the round before; three seeds, all rounds."""
    gains = []
    for seed in (1, 2, 3):
        method = CCVR(lr=0.1, epochs=5, batch=16)
        rows = start(small_experiment(method, alpha=0.1, rounds=4, seed=seed), out=None).rows
        pairs = itertools.pairwise(rows)
        gains += [new["models"]["calibrated"]["amp"] - old["models"]["active"]["amp"] for old, new in pairs]
    assert sum(gains) / len(gains) > 0.1


def test_what_leaves_a_client_and_what_is_refused():
    assert CCVR.leaves_client() == {
        "weights": "model weights",
        "means": "class means and covariances of features",
        "covariances": "class means and covariances of features",
        "counts": "label counts",
    }
    env = stage(small_experiment(CCVR()), Storage()).env
    good = CCVR().template(env)
    for counts in (good.counts, good.counts - 1):
        bad = Described(good.weights, good.means, good.covariances, counts)
        assert CCVR().objection(env, bad) == "counts: must be ≥ 0, and one > 0"
