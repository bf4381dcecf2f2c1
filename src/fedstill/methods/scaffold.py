"""Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import Gather, Remember, mean, stepped
from fedstill.parts.learner import LocalTraining
from fedstill.parts.losses import cross_entropy


@record
class Steered:
    """What leaves a client: its weights, and by how much its control variate changed."""

    weights: State = carries(Carries.WEIGHTS)
    change: State = carries(Carries.CONTROL)


@record
class Course:
    """The server's state: w, its control variate c, and what the gather remembers."""

    weights: State
    control: State
    memory: Any


@record
class Heading:
    """What goes down: w and c."""

    weights: State = carries(Carries.WEIGHTS)
    control: State


@record
class Control:
    """What stays on a client: its control variate c_i."""

    control: State


@methods.register("scaffold")
@dataclass(frozen=True)
class Scaffold(LocalTraining, Method[Course, Control, Heading, Steered]):
    """Control variates take the drift out of every local step.

    Algorithm 1 with option II; steps along g − c_i + c, so the drift of c_i's gradients cancels.
    """

    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    made_for = ("labels differ much from client to client",)
    private_learners = 1
    server_sums = "plain"
    one_download = True
    server_lr: float = setting(1.0, gt=0, doc="step size of the server (η_g)")
    gather: Gather = setting(Remember(), doc="what the server does with the replies (remember: also report `overall`)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd" or self.momentum:
            found = f"optimizer = {self.optimizer}" if self.optimizer != "sgd" else f"momentum = {self.momentum}"
            raise UsageError(f"{found}: scaffold reads gradients off its steps; must be sgd without momentum")

    def init_server(self, env: Env) -> Course:
        """w⁰; c = 0."""
        weights = env.initial()
        return Course(weights, self.init_client(env).control, self.gather.init(env, weights))

    def init_client(self, env: Env) -> Control:
        """c_i = 0, one number for each parameter."""
        return Control({name: torch.zeros_like(p, device="cpu") for name, p in parameters(env)})

    def download(self, env: Env, server: Course) -> Heading:
        """w and c."""
        return Heading(server.weights, server.control)

    def client(self, env: Env, state: Control, down: Heading, data: Samples) -> tuple[Control, Steered]:
        """y ← y − lr (g(y) − c_i + c); then c_i⁺ = c_i − c + (w − y)/(steps · lr), the mean gradient (option II)."""
        learner = self.learner(env, env.module(down.weights))
        names = list(state.control)
        steer = [(down.control[n] - state.control[n]).to(env.device) for n in names]
        steps = 0
        for x, y in self.batches(env, data, learner.module):
            learner.step(cross_entropy(learner(x), y), shift=steer)
            steps += 1
        weights = learner.weights
        if not steps:
            return state, Steered(weights, self.init_client(env).control)
        travelled = steps * self.rate(env)
        change = {n: (down.weights[n] - weights[n]) / travelled - down.control[n] for n in names}
        return Control({n: state.control[n] + change[n] for n in names}), Steered(weights, change)

    def server(self, env: Env, server: Course, replies: Sequence[Reply[Steered]]) -> Course:
        """w ← w + η_g mean(y_i − w), c ← c + |S|/N mean(c_i⁺ − c_i): plain means over the active clients S."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        uploads = [r.upload for r in kept if r.upload is not None]
        if not uploads:
            return Course(server.weights, server.control, memory)
        drift = mean([u.change for u in uploads])
        pulls = [self.server_lr / len(uploads)] * len(uploads)
        weights = stepped(server.weights, [u.weights for u in uploads], pulls, drift)
        share = len(uploads) / env.clients
        return Course(weights, {n: c + share * drift[n] for n, c in server.control.items()}, memory)

    def template(self, env: Env) -> Steered:
        """Weights of the global model's form and a number for each parameter."""
        return Steered(env.form(), self.init_client(env).control)

    def models(self, env: Env, server: Course) -> Mapping[str, State]:
        """`active` and, with `Remember`, `overall`."""
        return {"active": server.weights, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: Course) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)


def parameters(env: Env) -> list[tuple[str, Tensor]]:
    """The global model's parameters by name, without buffers."""
    return [(name, p.detach()) for name, p in env.module().named_parameters()]
