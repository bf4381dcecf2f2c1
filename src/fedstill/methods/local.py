"""Training without a federation: is it worth taking part in one?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.data.samples import Samples
from fedstill.parts.learner import LocalTraining, Memory


@record
class Steps:
    """What leaves a client: how many steps it took, which is how the server knows that it is there."""

    steps: Tensor = carries(Carries.STEPS)


@record
class Tally:
    """The server's state: the steps that all clients have taken so far."""

    steps: float


@record
class Nothing:
    """What goes down: nothing but the word to begin."""


@record
class Alone:
    """What stays on a client: its model and its optimiser's state."""

    weights: State
    memory: Memory


@methods.register("local")
@dataclass(frozen=True)
class Local(LocalTraining, Method[Tally, Alone, Nothing, Steps]):
    """Every client trains alone, from its own last model; nothing is shared. The yardstick below any federation."""

    paper = "none: every client alone, the yardstick below any federation"
    one_architecture = False
    one_download = True

    def init_server(self, env: Env) -> Tally:
        """Nobody has taken a step."""
        return Tally(0.0)

    def init_client(self, env: Env) -> Alone:
        """A model of the client's own architecture."""
        return Alone(env.initial(env.client), {})

    def download(self, env: Env, server: Tally) -> Nothing:
        """Nothing."""
        return Nothing()

    def client(self, env: Env, state: Alone, down: Nothing, data: Samples) -> tuple[Alone, Steps]:
        """E epochs of SGD; model and optimiser go on where they stopped."""
        learner = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        steps = self.train(env, learner, data)
        return Alone(learner.weights, learner.memory), Steps(torch.tensor(float(steps)))

    def server(self, env: Env, server: Tally, replies: Sequence[Reply[Steps]]) -> Tally:
        """Count the steps."""
        return Tally(server.steps + sum(float(reply.upload.steps) for reply in replies))

    def template(self, env: Env) -> Steps:
        """A count."""
        return Steps(torch.zeros(()))

    def objection(self, env: Env, upload: Steps) -> str | None:
        """Steps are not negative."""
        return None if upload.steps >= 0 else f"steps = {float(upload.steps):g}: must be ≥ 0"

    def own(self, env: Env, state: Alone) -> State:
        """The client's model."""
        return state.weights

    def facts(self, env: Env, server: Tally) -> Mapping[str, Any]:
        """`steps`: all clients' steps so far."""
        return {"steps": int(server.steps)}
