"""Where the processor time of a tiny client's turn goes, piece by piece: the `tiny` work of `peers.py`, inline.

    python benchmarks/pieces.py

Logistic regression, 60 samples, batches of 10, one thread. The least of many repetitions of each piece is printed, in
microseconds, so that other work on the machine disturbs little; then Adam's update of a small network beside torch's.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import fedstill as fs
from fedstill.core import record
from fedstill.core.loop import admit, rounds
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.core.turn import turn
from fedstill.experiment.config import experiment
from fedstill.experiment.stage import Stage, stage
from fedstill.parts.adam import Adam
from fedstill.parts.gather import Everyone
from fedstill.transports import Inline

ACTIVE = 10
METHOD = fs.FedAvg(gather=Everyone(), lr=0.05, epochs=1, batch=10)


def least(call: Callable[[], object], calls: int = 5, repetitions: int = 25) -> float:
    """Microseconds of processor time of a call."""
    found = []
    for _ in range(repetitions):
        began = time.process_time()
        for _ in range(calls):
            call()
        found.append(time.process_time() - began)
    return 1e6 * min(found) / calls


def staged() -> Stage:
    """A hundred clients of 60 samples of noise."""
    x = np.random.default_rng(0).normal(size=(6000, 1, 28, 28)).astype(np.float32)
    y = np.arange(6000) % 10
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    settings = {"method": METHOD, "data": (x, y, x[:500], y[:500]), "model": model, "clients": 100, "active": ACTIVE}
    return stage(experiment({**settings, "partition": {"name": "iid"}, "local_test": 0}), Storage())


def pieces(ready: Stage) -> dict[str, float]:
    """Microseconds of each piece of a turn and of a round."""
    env, here = ready.env.at(0), ready.env.at(0, 3)
    server = METHOD.init_server(env)
    down, party = METHOD.download(env, server), ready.party(3)
    module = here.module(down.weights)
    learner = METHOD.learner(here, module)
    _, upload = turn(METHOD, here, party, None, down)
    replies = [Reply(k, 60, upload) for k in range(ACTIVE)]
    written = record.dumps((None, upload))
    link = Inline(METHOD, ready.party, env.shelf("clients"))
    return {
        "samples taken": least(lambda: ready.party(3)),
        "samples normalised": least(party.data.inputs),
        "module made": least(lambda: here.module(down.weights)),
        "learner made": least(lambda: METHOD.learner(here, module)),
        "steps": least(lambda: METHOD.train(here, learner, party.data)),
        "weights copied": least(lambda: learner.weights),
        "whole turn": least(lambda: turn(METHOD, here, party, None, down)),
        "upload written": least(lambda: record.dumps((None, upload))),
        "upload read": least(lambda: record.loads(written)),
        f"{ACTIVE} replies admitted": least(lambda: admit(METHOD, env, replies)),
        f"{ACTIVE} replies averaged": least(lambda: METHOD.server(env, server, replies)),
        f"round of {ACTIVE}": least(lambda: list(rounds(METHOD, env, link, lambda t: range(ACTIVE), 1)), calls=2),
    }


def updates() -> dict[str, float]:
    """Microseconds of Adam's update of a small CNN of 220,000 weights, by torch and by ours."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3), nn.Linear(64 * 49, 64), nn.Linear(64, 10)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    gradients = [torch.randn_like(parameter) for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    ours, theirs = Adam(parameters, 1e-3), torch.optim.Adam(parameters, lr=1e-3)
    return {"Adam's update, torch": least(theirs.step), "Adam's update, ours": least(lambda: ours.apply(gradients))}


def main() -> None:
    torch.set_num_threads(1)
    for title, microseconds in {**pieces(staged()), **updates()}.items():
        print(f"{title:22} {microseconds:9.1f} µs")


if __name__ == "__main__":
    main()
