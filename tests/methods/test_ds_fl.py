"""DS-FL: sharpening by hand, what clients and server learn from it, and labels that nobody looks at."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment
from torch import tensor
from torch.nn.functional import softmax

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage
from fedstill.methods import DSFL
from fedstill.methods.ds_fl import Distilling
from fedstill.parts.public_logits import PublicLogits


def test_sharpening_by_hand() -> None:
    """Two clients say (¾, ¼) and (¼, ¾)… and (¾, ¼) twice: mean (¾, ¼). At T = ½: e^1.5 against e^.5, so e/(e + 1).

    The plain mean keeps (¾, ¼).
    """
    logits = tensor([[[math.log(3), 0.0]], [[math.log(3), 0.0]]])
    sharp, _, _ = DSFL(temperature=0.5).conclude(None, logits, tensor([0]), None)  # type: ignore[arg-type]
    assert softmax(sharp, -1)[0, 0].item() == pytest.approx(math.e / (math.e + 1))
    plain, _, _ = DSFL(aggregate="mean").conclude(None, logits, tensor([0]), None)  # type: ignore[arg-type]
    assert softmax(plain, -1)[0].tolist() == pytest.approx([0.75, 0.25])


def test_soft_labels_are_averaged_not_logits() -> None:
    """One client is very sure of class 0, two mildly of class 1: (1 + .25 + .25)/3 = .5 for class 0.

    The mean of logits would have left no doubt.
    """
    logits = tensor([[[99.0, 0.0]], [[0.0, math.log(3)]], [[0.0, math.log(3)]]])
    mean, _, _ = DSFL(aggregate="mean").conclude(None, logits, tensor([0]), None)  # type: ignore[arg-type]
    assert softmax(mean, -1)[0, 0].item() == pytest.approx(0.5, abs=1e-4)


def exchanged(method: DSFL, labels: Any = None) -> tuple[Any, Distilling, PublicLogits]:
    """The server after two clients' turns, and a third turn's upload that learnt from it."""
    ready = stage(small_experiment(method, alpha=100.0), Storage())
    env = ready.env
    if labels is not None:
        env = replace(env, public=replace(env.public, y=labels(env.public.y)))
    server: Any = method.init_server(env)
    replies = []
    for k in range(2):
        here = env.at(0, k)
        _, upload = method.client(here, method.init_client(here), method.download(here, server), ready.party(k).data)
        replies.append(Reply(k, 10, upload))
    server = method.server(env, server, replies)
    here = env.at(1, 2)
    _, upload = method.client(here, method.init_client(here), method.download(here, server), ready.party(2).data)
    return env, server, upload


def test_the_labels_of_the_public_set_change_nothing() -> None:
    _, server, upload = exchanged(DSFL(epochs=1))
    _, other, again = exchanged(DSFL(epochs=1), labels=lambda y: 9 - y)
    assert same_bits(server.weights, other.weights)
    assert same_bits(server.wisdom, other.wisdom)
    assert same_bits(upload, again)


def test_the_servers_model_comes_to_the_soft_labels() -> None:
    method = DSFL(epochs=10, digest=40, lr=0.01)
    env, server, _ = exchanged(method)
    inputs = env.public.inputs(server.wisdom.index)
    with torch.no_grad():
        said = env.module(server.weights).eval()(inputs).argmax(-1)
    assert (said == server.wisdom.logits.argmax(-1)).float().mean() > 0.9


def test_it_learns_with_different_networks() -> None:
    method = DSFL(lr=0.01, epochs=4, digest=4)
    result = start(small_experiment(method, active=1.0, alpha=100.0, rounds=3, samples=600), out=None)
    assert result.models == ["global", "personal"]
    assert result.last("global")["accuracy"] > 0.5
    assert set(result.bytes_by_field()["up"]) == {"logits", "index"}
