"""Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning. arXiv 2006.16765, 2020."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fedstill.core.method import Env, methods
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update
from fedstill.parts.learner import Memory
from fedstill.parts.mutual import mutual


@record
class Pupil:
    """What stays on a client: its private model, its optimiser's state, and what the gather keeps."""

    weights: State
    memory: Memory
    kept: Any


@methods.register("fml")
@dataclass(frozen=True)
class FML(Averaging):
    """A private model and a copy of the global one teach each other; only the copy travels.

    α CE + (1 − α) KL(meme ‖ local) for the local model, β CE + (1 − β) KL(local ‖ meme) for the meme model.
    """

    paper = "Shen et al., Federated Mutual Learning, 2020"
    made_for = ("clients may have different networks",)
    private_learners = 2
    server_sums = "samples"
    one_architecture = False
    alpha: float = setting(0.5, ge=0, le=1, doc="weight of the labels for the local model (α)")
    beta: float = setting(0.5, ge=0, le=1, doc="weight of the labels for the meme model (β); 1: FedAvg")

    def init_client(self, env: Env) -> Pupil:
        """A private model of the client's own architecture."""
        return Pupil(env.initial(env.client), {}, None)

    def client(self, env: Env, state: Pupil, down: Broadcast, data: Samples) -> tuple[Pupil, Update]:
        """Both models step on every batch; each sees the other's logits of before the step."""
        local = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        meme = self.learner(env, env.module(down.weights))
        for x, y in self.batches(env, data, nn.ModuleList([local.module, meme.module])):
            own, shared = local(x), meme(x)
            local.step(mutual(own, shared, y, self.alpha))
            meme.step(mutual(shared, own, y, self.beta))
        kept, upload = self.gather.outgoing(env, state.kept, meme.weights)
        return Pupil(local.weights, local.memory, kept), upload

    def own(self, env: Env, state: Pupil) -> State:
        """The client's private model."""
        return state.weights
