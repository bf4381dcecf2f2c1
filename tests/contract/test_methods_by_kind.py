"""What every registered method promises on every kind of data, whatever it computes."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from smallest import same_bits, small_method

from fedstill.core.loop import rounds
from fedstill.core.method import methods
from fedstill.core.record import dumps, loads
from fedstill.core.shelf import Storage
from fedstill.data import Dataset, load
from fedstill.experiment.config import experiment
from fedstill.experiment.link import transport
from fedstill.experiment.run import active, start
from fedstill.experiment.stage import stage

ROWS = 72


@cache
def tiny(kind: str) -> Dataset:
    """Three sites, two classes, samples whose class shows: a shifted column, channel or word."""
    rng = np.random.default_rng(0)
    y, site = np.arange(ROWS) % 2, np.arange(ROWS) // (ROWS // 3)
    if kind == "table":
        x = np.stack([rng.normal(3.0 * y, 1), rng.normal(0, 1, ROWS), (y + (rng.random(ROWS) < 0.1)) % 2], 1)
        x[::9, 1] = np.nan
        known: dict[str, Any] = {"names": ["a", "b", "c"], "categories": ["c=u|v"]}
    elif kind == "series":
        x, known = rng.normal(2.0 * y[:, None, None], 1, (ROWS, 2, 12)), {}
    else:
        x = np.where(rng.random((ROWS, 6)) < 0.6, 1 + y[:, None], rng.integers(3, 20, (ROWS, 6)))
        known = {"kind": "tokens"}
    return load({"x": x, "y": y, "site": site, **known})


@pytest.mark.parametrize("kind", ["table", "series", "tokens"])
@pytest.mark.parametrize("name", sorted(methods))
def test_a_method_takes_a_round_on_every_kind_of_data(name: str, kind: str) -> None:
    """Nobody is refused, messages survive the wire, and every model of the server has learnt something finite."""
    plan = experiment({"method": small_method(name, batch=12), "data": tiny(kind), "rounds": 1, "workers": "inline"})
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        done = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1))
        own = [plan.method.own(ready.env.at(0, k), link.states[k]) for k in link.states]
    assert done.missing == {}
    assert len(done.replies) == ready.env.clients
    assert all(same_bits(loads(dumps(r.upload)), r.upload) for r in done.replies)
    env = ready.env.at(0)
    shared = plan.method.models(env, done.server)
    assert plan.method.judged_by in ("", *shared), "a method is judged by a model that it reports"
    models = [*shared.values(), *(weights for weights in own if weights is not None)]
    assert models
    begun = ready.env.initial()
    x = tiny(kind).train.inputs()
    for weights in models:
        with torch.no_grad():
            assert torch.isfinite(ready.env.module(weights).eval()(x)).all()
    assert any(not same_bits(weights, begun) for weights in models), "something was learnt"


@pytest.mark.parametrize("kind", ["table", "series", "tokens"])
def test_noisy_data_spoils_training_on_every_kind(kind: str) -> None:
    """With clean samples the classes are told apart; where every client's are noise, they are not."""
    plan = {
        "method": small_method("fedavg", epochs=20, batch=12, optimizer="adam", lr=0.01), "data": tiny(kind),
        "rounds": 1, "workers": "inline", "active": 1.0,
    }  # fmt: skip
    noisy = {"attack": {"name": "noisy-data", "share": [1.0], "std": 20.0}, "malicious": [0, 1, 2]}
    found = []
    for more in ({}, noisy):
        found.append(start(experiment({**plan, **more}), out=None).last("active")["amp"])
    clean, spoilt = found
    assert clean >= 0.85
    assert spoilt <= clean - 0.1
