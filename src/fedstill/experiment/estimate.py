"""How long a run will take: a few steps of one client, one server turn and one examination, measured and multiplied."""

import math
import time
from dataclasses import replace
from statistics import fmean, median_low
from typing import Any

from fedstill.core.loop import turn
from fedstill.core.method import Reply
from fedstill.core.shelf import Room
from fedstill.experiment.config import Experiment
from fedstill.experiment.run import one_thread
from fedstill.experiment.stage import stage

STEPS = 3


def seconds(plan: Experiment) -> float:
    """Seconds of the whole run on one core; data that are missing raise their own error."""
    with one_thread():
        return _measured(plan)


def _measured(plan: Experiment) -> float:
    ready = stage(plan, Room(None, plan.memory << 20))
    method, sizes = plan.method, [n for n in ready.env.sizes if n]
    client = ready.env.sizes.index(median_low(sizes))
    server = method.init_server(ready.env.at(0))
    down = method.download(ready.env.at(0, client), server)

    def timed(method: Any) -> tuple[float, Any, Any]:
        began = time.perf_counter()
        state, upload = turn(method, ready.env.at(0, client), ready.party(client), None, down)
        return time.perf_counter() - began, state, upload

    if hasattr(method, "local_steps"):
        timed(replace(method, local_steps=1))  # the first step of all pays for what is made once
        first = timed(replace(method, local_steps=1))[0]
        more, state, upload = timed(replace(method, local_steps=1 + STEPS))
        step = max(0.0, more - first) / STEPS
        own = method.local_steps
        count = own or fmean(method.epochs * math.ceil(n / method.batch) for n in sizes)
        training = max(0.0, first - step) + step * count
    else:
        training, state, upload = timed(method)
    began = time.perf_counter()
    replies = [Reply(k, ready.env.sizes[k], upload) for k in range(plan.active_count)]
    after = method.server(ready.env.at(0), server, replies)
    serving = time.perf_counter() - began
    began = time.perf_counter()
    models = [ready.env.module(weights) for weights in method.models(ready.env.at(0), after).values()]
    own_model = method.own(ready.env.at(0, client), state) if state is not None else None
    for module in models or ([ready.env.module(own_model, client)] if own_model is not None else []):
        ready.exam.correct(module)
    examining = (time.perf_counter() - began) * (1 if models or own_model is None else plan.active_count)
    return plan.rounds * (plan.active_count * training + serving + examining / plan.evaluate_every)
