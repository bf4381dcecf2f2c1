"""How long a round will take: a few steps of one client, a server turn and an examination, measured, multiplied."""

import math
import time
from dataclasses import replace
from statistics import fmean, median_low
from typing import Any

from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.core.turn import method_state, turn
from fedstill.experiment.config import Experiment
from fedstill.experiment.drive import one_thread
from fedstill.experiment.stage import stage
from fedstill.parts.learner import LocalTraining

AT_LEAST = 0.5
"""Seconds of steps to measure: fewer would be noise."""


def round_seconds(plan: Experiment) -> float:
    """Seconds of a round on one core; data that are missing raise their own error."""
    with one_thread():
        return _measured(plan)


def _measured(plan: Experiment) -> float:
    ready = stage(plan, Storage(None, plan.memory << 20))
    method: Any = plan.method
    sizes = [n for n in ready.env.sizes if n]
    client = ready.env.sizes.index(median_low(sizes))
    server = method.init_server(ready.env.at(0))
    down = method.download(ready.env.at(0, client), server)

    def timed(method: Any) -> tuple[float, Any, Any]:
        began = time.perf_counter()
        state, upload = turn(method, ready.env.at(0, client), ready.party(client), None, down)
        return time.perf_counter() - began, state, upload

    if isinstance(method, LocalTraining):
        timed(replace(method, local_steps=1))  # the first step of all pays for what is made once
        first = timed(replace(method, local_steps=1))[0]
        steps = min(50, max(3, math.ceil(AT_LEAST / first)))
        more, state, upload = timed(replace(method, local_steps=1 + steps))
        step = max(0.0, more - first) / steps
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
    whose = method.architectures(ready.env.at(0), after)
    models = [ready.env.module(w, whose.get(name)) for name, w in method.models(ready.env.at(0), after).items()]
    own_model = method.own(ready.env.at(0, client), method_state(state)) if state is not None else None
    for module in models or ([ready.env.module(own_model, client)] if own_model is not None else []):
        ready.exam.correct(module)
    examining = (time.perf_counter() - began) * (1 if models or own_model is None else plan.active_count)
    return plan.active_count * training + serving + examining / plan.evaluate_every
