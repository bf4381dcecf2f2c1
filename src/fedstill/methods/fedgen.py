"""Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.rng import seeded
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.models.conditional import EmbeddedFeatures, FeatureGenerator, feature_width
from fedstill.parts.distil import uploads_of
from fedstill.parts.gather import Gather, Remember, average
from fedstill.parts.labels import CountedUpdate, Counting, class_shares, counts_of, diversity, draw_labels
from fedstill.parts.learner import Learner, LocalTraining, Memory, frozen, optimizer_of
from fedstill.parts.losses import cross_entropy, kl


@record
class Consensus:
    """The server's state: w, the generator with its Adam's state (None before the first round), the gather's memory."""

    weights: State
    generator: State | None
    adam: Memory
    memory: Any


@record
class Rehearsal:
    """What goes down: w, and the generator once there is one."""

    weights: State = carries(Carries.WEIGHTS)
    generator: State | None


@methods.register("fedgen")
@dataclass(frozen=True)
class FedGen(LocalTraining, Counting, Method[Consensus, None, Rehearsal, CountedUpdate]):
    """The server learns a generator of feature vectors, with which clients rehearse what others know.

    FedAvg whose clients also learn from generated features of every class, and agree with them on their own.
    """

    paper = "Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021"
    needs_features = True
    one_download = True
    noise: int = setting(32, ge=1, doc="length of the generator's noise")
    hidden: int = setting(256, ge=1, doc="width of the generator's hidden layer")
    form: Literal["one-hot", "embeddings"] = setting(
        "one-hot",
        doc="the generator sees [noise; one-hot label], or embeddings of both (as DaFKD and FedRAD describe it)",
    )
    generator_steps: int = setting(50, ge=1, doc="steps of the generator in a round")
    generator_lr: float = setting(3e-4, gt=0, doc="Adam's rate for the generator")
    generator_batch: int = setting(32, ge=2, doc="generated features in a step, on the server and on a client")
    alpha: float = setting(10.0, ge=0, doc="weight of the cross-entropy of generated features (a)")
    beta: float = setting(10.0, ge=0, doc="weight of agreement with generated features of the same label (b)")
    decay: float = setting(0.98, gt=0, le=1, doc="factor on both weights after every round")
    gather: Gather = setting(Remember(), doc="what the server does with the replies (remember: also report `overall`)")

    def init_server(self, env: Env) -> Consensus:
        """w⁰, and no generator yet."""
        weights = env.initial()
        return Consensus(weights, None, {}, self.gather.init(env, weights))

    def init_client(self, env: Env) -> None:
        """A client keeps nothing."""
        return

    def make_generator(self, env: Env, weights: State | None) -> nn.Module:
        """G with these weights, or with those it starts from."""
        width = feature_width(env.module(), env.kind)
        with seeded(env.at(0).key("generator")):
            form = EmbeddedFeatures if self.form == "embeddings" else FeatureGenerator
            made = form(width, env.classes, self.noise, self.hidden)
        made.load_state_dict(weights or made.state_dict())
        return made.to(env.device)

    def download(self, env: Env, server: Consensus) -> Rehearsal:
        """w and G."""
        return Rehearsal(server.weights, server.generator)

    def client(self, env: Env, state: None, down: Rehearsal, data: Samples) -> tuple[None, CountedUpdate]:
        """CE + a CE(head(G(ŷ)), ŷ) + b KL(head(G(y)) ‖ p(x)); CE alone while there is no generator."""
        module = env.module(down.weights)
        learner = self.learner(env, module)
        generator = None if down.generator is None else frozen(self.make_generator(env, down.generator))
        stream = env.stream("rehearsal")
        for x, y in self.batches(env, data, module):
            logits = learner(x)
            loss = cross_entropy(logits, y)
            if generator is not None:
                loss = loss + self.rehearse(env, module, generator, logits, y, stream)
            learner.step(loss)
        return None, CountedUpdate(learner.weights, data.counts(env.classes))

    def rehearse(
        self, env: Env, module: Classifier, generator: nn.Module, logits: Tensor, y: Tensor, stream: torch.Generator
    ) -> Tensor:
        """Both terms with generated features; the teacher head(G(y)) is a constant."""
        fading = self.decay**env.round
        any_label = torch.randint(env.classes, (self.generator_batch,), generator=stream).to(env.device)
        of_any = module.head(generator(self.draw(env, len(any_label), stream), any_label))
        loss = self.alpha * cross_entropy(of_any, any_label)
        if self.beta:  # FedKF's form of FedGen has b = 0, and does not run this branch
            with torch.no_grad():
                same = module.head(generator(self.draw(env, len(y), stream), y))
            loss = loss + self.beta * kl(same, logits)
        return fading * loss

    def draw(self, env: Env, count: int, stream: torch.Generator) -> Tensor:
        """ε ~ N(0, I)."""
        return torch.randn(count, self.noise, generator=stream).to(env.device)

    def server(self, env: Env, server: Consensus, replies: Sequence[Reply[CountedUpdate]]) -> Consensus:
        """Train G to please the clients' heads, each as far as it knows the class; average the weights."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return server
        generator = self.make_generator(env, server.generator).train()
        learner = Learner(generator, optimizer_of("adam", generator, self.generator_lr)).recall(server.adam)
        heads = [frozen(env.module(upload.weights)).head for upload in uploads_of(kept)]
        counts, stream = counts_of(uploads_of(kept)), env.stream("generator")
        for _ in range(self.generator_steps):
            y = draw_labels(counts.sum(0) > 0, self.generator_batch, stream)
            shares, z, y = class_shares(counts)[:, y].to(env.device), self.draw(env, len(y), stream), y.to(env.device)
            features = learner.module(z, y)
            loss = diversity(z, features)
            for share, head in zip(shares, heads, strict=True):
                loss = loss + (share * cross_entropy(head(features), y, reduction="none")).mean()
            learner.step(loss)
        return Consensus(average(kept), learner.weights, learner.memory, memory)

    def models(self, env: Env, server: Consensus) -> Mapping[str, State]:
        """`active` (ACA) and, with `Remember`, `overall` (OCA)."""
        return {"active": server.weights, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: Consensus) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)
