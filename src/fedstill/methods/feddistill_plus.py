"""Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data. NeurIPS workshop 2018 (mean logits per class); with weights as in
Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedstill.core.method import Env, Reply, methods
from fedstill.core.record import State
from fedstill.core.value import by_field, setting
from fedstill.data.samples import Samples
from fedstill.methods.class_logits import (
    ClassLogits,
    ClassWisdomAndWeights,
    Form,
    MeanLogitsAndWeights,
    Own,
    Shared,
    nothing_known,
)
from fedstill.methods.fedhe import ClassWisdom, MeanLogits, fused
from fedstill.parts.distil import uploads_of
from fedstill.parts.forms import InForms
from fedstill.parts.gather import Everyone, Remember, average


@dataclass(frozen=True)
class WithoutWeights(Form):
    """The workshop paper's form: only class logits travel, and networks may differ."""

    one_architecture = False
    one_download = True

    def init_server(self, env: Env) -> Shared:
        """Nothing is known of any class."""
        return Shared(nothing_known(env), None, self.gather.init(env, None))

    def init_client(self, env: Env) -> Own:
        """A model of the client's own architecture."""
        return Own(env.initial(env.client), {})

    def download(self, env: Env, server: Shared) -> ClassWisdom:
        """Class logits."""
        return server.wisdom

    def client(self, env: Env, state: Own, down: ClassWisdom, data: Samples) -> tuple[Own, MeanLogits]:
        """E epochs, where model and optimiser stopped the last time."""
        learner = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        upload = MeanLogits(*self.taught(env, learner, down, data))
        return Own(learner.weights, learner.memory), upload

    def server(self, env: Env, server: Shared, replies: Sequence[Reply[MeanLogits]]) -> Shared:
        """Class logits from the clients that have the class."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        return Shared(fused(server.wisdom, uploads_of(kept)) if kept else server.wisdom, None, memory)

    def template(self, env: Env) -> MeanLogits:
        """Logits and presence of every class."""
        blank = nothing_known(env)
        return MeanLogits(blank.logits, blank.known)


@dataclass(frozen=True)
class WithWeights(Form):
    """FedGen's form: weights are averaged as well."""

    one_download = True

    def init_server(self, env: Env) -> Shared:
        """w⁰; nothing is known of any class."""
        weights = env.initial()
        return Shared(nothing_known(env), weights, self.gather.init(env, weights))

    def init_client(self, env: Env) -> Own:
        """w⁰."""
        return Own(env.initial(), {})

    def download(self, env: Env, server: Shared) -> ClassWisdomAndWeights:
        """Class logits and w."""
        assert server.weights is not None
        return ClassWisdomAndWeights(server.wisdom.logits, server.wisdom.known, server.weights)

    def client(
        self, env: Env, state: Own, down: ClassWisdomAndWeights, data: Samples
    ) -> tuple[Own, MeanLogitsAndWeights]:
        """E epochs from w."""
        learner = self.learner(env, env.module(down.weights))
        means, seen = self.taught(env, learner, down, data)
        weights = learner.weights
        return Own(weights, {}), MeanLogitsAndWeights(means, seen, weights)

    def server(self, env: Env, server: Shared, replies: Sequence[Reply[MeanLogitsAndWeights]]) -> Shared:
        """Class logits from the clients that have the class; w ← Σ n_k w_k / Σ n_k."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return Shared(server.wisdom, server.weights, memory)
        return Shared(fused(server.wisdom, uploads_of(kept)), average(kept), memory)

    def template(self, env: Env) -> MeanLogitsAndWeights:
        """Logits and presence of every class, and weights."""
        blank = nothing_known(env)
        return MeanLogitsAndWeights(blank.logits, blank.known, env.form())

    def models(self, env: Env, server: Shared) -> Mapping[str, State]:
        """`active` and what the gather adds."""
        assert server.weights is not None
        return {"active": server.weights, **self.gather.models(env, server.memory)}


@methods.register("feddistill-plus")
@dataclass(frozen=True)
class FedDistillPlus(ClassLogits, InForms):
    """Clients share the mean logits of each class, with or without their weights.

    CE plus γ KL to the softmax of the global mean logits of the sample's class.
    """

    paper = "Jeong et al., Federated Distillation and Augmentation under Non-IID Private Data, 2018"
    one_architecture = False  # of each value: whether it shares weights
    share_weights: bool = setting(True, doc="also average weights; false: class logits only, networks may differ")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.share_weights and isinstance(self.gather, Remember):  # there are no weights to remember
            object.__setattr__(self, "gather", Everyone())

    @property
    def form(self) -> WithWeights | WithoutWeights:
        """With weights, or class logits alone."""
        form = WithWeights if self.share_weights else WithoutWeights
        return form(**by_field(self, form))
