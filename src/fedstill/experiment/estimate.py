"""How long a round will take: steps of one client, a server's turn and a piece of an exam, measured and multiplied.

Seconds are the processor's, so that other work on the machine does not count. The probe is short: it takes a few
batches of the public set and a piece of the test, and extends both to their size; clients with other networks are taken
to cost more or less as their exams do. Runs that differ only in who takes part share one probe.
"""

import json
import math
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median_low
from typing import Any

import torch

from fedstill.core.loop import admit, downloads
from fedstill.core.method import Env, Reply
from fedstill.core.prototypes import Prototypes
from fedstill.core.shelf import Storage
from fedstill.core.turn import method_state, received, turn
from fedstill.experiment.config import Experiment, identity
from fedstill.experiment.drive import one_thread
from fedstill.experiment.stage import Stage, stage
from fedstill.parts.learner import LocalTraining

AT_LEAST = 0.5
"""Seconds of steps to measure: fewer would be noise."""
PIECE = 100
"""Samples in a piece of a test, and at least so many of the public set."""
_WHO = ("partition", "seed", "rounds", "attack", "malicious", "clients", "active", "models", "evaluate_every")
"""Settings that say who takes part and how often, but leave what a turn does as it is."""
_known: dict[str, "Costs"] = {}


@dataclass(frozen=True)
class Costs:
    """What a kind of run costs, in seconds of one core."""

    turn: float
    """A client's turn without its steps on private samples."""
    step: float
    """One such step."""
    serving: float
    """The server's turn."""
    exam: float
    """One model's exam."""
    models: int
    """How many models the server has to show; 0: every client has its own."""
    samples: int
    """Training samples of all clients."""


def round_seconds(plan: Experiment) -> float:
    """Seconds of a round on one core; data that are missing raise their own error."""
    kind = _kind(plan.plain())
    if kind not in _known:
        with one_thread():
            _known[kind] = _measured(plan)
    costs, method = _known[kind], plan.method
    steps = 0
    if isinstance(method, LocalTraining):
        own = costs.samples / (plan.clients if method.federated else 1)
        steps = method.local_steps or method.epochs * math.ceil(own / method.batch)
    examining = costs.exam * (costs.models or plan.active_count) / plan.evaluate_every
    return plan.active_count * (costs.turn + costs.step * steps) + costs.serving + examining


def _kind(settings: Mapping[str, Any]) -> str:
    """What decides the costs: all but who takes part, who holds what, and numbers that only weigh."""
    method = {
        name: value.get("name") if isinstance(value, Mapping) else value
        for name, value in settings["method"].items()
        if not isinstance(value, float)
    }
    networks = sorted({str(model) for model in settings["models"]})
    return json.dumps({**identity(settings, *_WHO), "method": method, "networks": networks}, sort_keys=True)


def _measured(plan: Experiment) -> Costs:
    ready = stage(plan, Storage(None, plan.memory << 20))
    sizes = [n for n in ready.env.sizes if n]
    client = ready.env.sizes.index(median_low(sizes))
    pieces = _pieces(ready.env, plan)
    turns, serving, models, has_own = [], [], 0, False
    step = 0.0
    for count in pieces:  # the public set in two sizes: what grows with it is extended to the whole of it
        env = ready.env if count is None else replace(ready.env, public=_every(ready.env.public, count))
        probe = _Probe(plan, ready, env, client)
        if count == pieces[0]:
            step = probe.step()
        turns.append(probe.timed(1)[0] - step)
        serving.append(probe.serving)
        models, has_own = probe.models, probe.has_own
    whole = 0 if ready.env.public is None else len(ready.env.public)
    exams = _exams(ready, client)
    share = fmean(exams) / exams[0]  # other networks' turns cost more or less, as their exams do
    return Costs(
        share * _extended(pieces, turns, whole),
        share * step,
        _extended(pieces, serving, whole),
        fmean(exams),
        models or (0 if has_own else 1),
        sum(sizes),
    )


def _pieces(env: Env, plan: Experiment) -> list[int | None]:
    """How many public samples the probe takes: two numbers, or None where all are taken or there are none."""
    least = max(PIECE, 2 * plan.method.batch if isinstance(plan.method, LocalTraining) else 2)
    return [None] if env.public is None or len(env.public) <= 2 * least else [least, 2 * least]


def _every(samples: Any, count: int) -> Any:
    """So many of the samples, evenly chosen."""
    return samples[torch.arange(count) * len(samples) // count]


def _extended(pieces: list[int | None], seconds: list[float], whole: int) -> float:
    """Seconds with the whole public set, from those with two pieces of it.

    >>> _extended([100, 200], [1.5, 2.5], 1000)  # .5, and .01 for each sample
    10.5
    """
    if len(seconds) < 2 or pieces[0] is None or pieces[1] is None:
        return max(0.0, seconds[0])
    slope = max(0.0, seconds[1] - seconds[0]) / (pieces[1] - pieces[0])
    return max(0.0, seconds[0]) + slope * (whole - pieces[0])


class _Probe:
    """The first round with one client's upload for all who have its network, and one client's turn in the second."""

    def __init__(self, plan: Experiment, ready: Stage, env: Env, client: int) -> None:
        method: Any = plan.method
        self.plan, self.ready, self.env, self.client = plan, ready, env, client
        self.round, server = 0, method.init_server(env.at(0))
        self.state: Any = None
        self.down = method.download(env.at(0, client), server)
        _, state, upload = self.timed(1)  # the first of all also pays for what is made once
        replies = self.replies(server, upload)
        began = time.process_time()
        good, _ = admit(method, env.at(0), received(plan.wrappers, env.at(0), replies))
        after = method.server(env.at(0), server, good) if good else server
        self.serving = time.process_time() - began
        self.models = len(method.models(env.at(0), after))
        self.has_own = state is not None and method.own(env.at(0, client), method_state(state)) is not None
        self.round, self.state = 1, state  # many methods teach from the second round on
        self.down = method.download(env.at(1, client), after)

    def replies(self, server: Any, upload: Any) -> list[Reply[Any]]:
        """One of every active client: the upload of the first with its network; `upload` is the measured client's."""
        method: Any = self.plan.method
        uploads, replies = {_network(self.env, self.client): upload}, []
        for k, down in downloads(method, self.env.at(0), server, range(self.plan.active_count)).items():
            here, network = self.env.at(0, k), _network(self.env, k)
            if network not in uploads:
                _, uploads[network] = turn(_stepping(method, 1), here, self.ready.party(k), None, down)
            replies.append(Reply(k, self.env.sizes[k], uploads[network], down=down, form=method.template(here)))
        return replies

    def timed(self, steps: int) -> tuple[float, Any, Any]:
        """A turn of so many steps; a method that does not count them takes its whole turn."""
        method = _stepping(self.plan.method, steps)
        began = time.process_time()
        party = self.ready.party(self.client)
        state, upload = turn(method, self.env.at(self.round, self.client), party, self.state, self.down)
        return time.process_time() - began, state, upload

    def step(self) -> float:
        """Seconds of one more step."""
        if not isinstance(self.plan.method, LocalTraining):
            return 0.0
        first = self.timed(1)[0]
        steps = min(50, max(2, math.ceil(AT_LEAST / first)))
        return max(0.0, self.timed(1 + steps)[0] - first) / steps


def _stepping(method: Any, steps: int) -> Any:
    """The method with so many steps a turn, where it counts them."""
    return replace(method, local_steps=steps) if isinstance(method, LocalTraining) else method


def _network(env: Env, client: int) -> Hashable:
    """What names a client's network; None where all are built alike."""
    return env.build.which(client) if isinstance(env.build, Prototypes) else None


def _exams(ready: Stage, client: int) -> list[float]:
    """Seconds of an exam of every different network; the client's own first."""
    clients = range(ready.env.clients - 1, -1, -1)
    different = {_network(ready.env, k): k for k in [*clients, client]}
    others = [k for k in different.values() if k != client]
    pool = ready.exam.pool
    inputs = pool.inputs(torch.arange(min(PIECE, len(pool)))).to(ready.env.device)
    seconds = []
    for k in [client, *others]:
        module = ready.env.module(None, k).eval()
        with torch.no_grad():
            module(inputs)  # the first pays for what is made once
            began = time.process_time()
            module(inputs)
        seconds.append(max(1e-9, time.process_time() - began) * len(pool) / max(1, len(inputs)))
    return seconds
