"""Wang, Li, Xu, Li, Zhan, Zeng: DaFKD: Domain-aware Federated Knowledge Distillation. CVPR 2023.
Equation and line numbers are the paper's; the method page lists every choice and deviation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import changes, setting
from fedstill.data.samples import Samples
from fedstill.methods.dafkd.counsel import AUTHORS, Contribution, Counsel
from fedstill.methods.dafkd.domain import deceive
from fedstill.methods.dafkd.rivalry import authors_loss, joint_loss, separate_losses
from fedstill.parts.conditional_generator import Gallery
from fedstill.parts.distil import Lesson, uploads_of
from fedstill.parts.gather import Everyone, Gather, mean
from fedstill.parts.learner import LocalTraining, Optimizer, weights_of


@record
class OwnDomain:
    """What stays on a client between rounds (line 18): θ_k^d."""

    discriminator: State


@record
class Handout:
    """What goes down (line 6): w and θ^g."""

    weights: State = carries(Carries.WEIGHTS)
    generator: State


@record
class Distilled:
    """The server's state: w, the average ŵ it came from, θ^g; for reports, of the last round: α̂ by client and class."""

    weights: State
    average: State
    generator: State
    memory: Any
    round: int
    factors: Mapping[int, Tensor]
    made: Tensor
    gallery: Gallery


@methods.register("dafkd")
@dataclass(frozen=True)
class DaFKD(LocalTraining, Counsel, Method[Distilled, OwnDomain, Handout, Contribution]):
    """Each client has a discriminator of its own domain, which says how far to believe its model on a sample.

    Algorithm 1: adversarial training on the clients, ensemble distillation weighted by domain on the server.
    """

    paper = "Wang et al., DaFKD: Domain-aware Federated Knowledge Distillation, CVPR 2023"
    made_for = ("labels differ much from client to client",)
    private_learners = 1
    needs_features = True
    one_download = True
    lr: float = setting(1e-3, gt=0, doc="learning rate of classifier and discriminator")
    epochs: int = setting(20, ge=1, doc="local epochs in a round, where local_steps is none")
    local_steps: int | None = setting(20, ge=1, doc="local steps in a round (E); none: epochs")
    batch: int = setting(32, ge=2, doc="batch size (B)")
    optimizer: Optimizer = setting("adam", doc="sgd or adam")
    weight_decay: float = setting(1e-3, ge=0, doc="L2 penalty of local training")
    stable: bool = setting(False, doc="the generator's loss does not saturate: −log f(g(z)) instead of (3)")
    gather: Gather = setting(Everyone(), doc="what the server does with the replies first")

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = changes(self)
        if self.inner and (self.theirs or not self.sharing):
            wrong = "profile = authors" if self.theirs else "sharing = false"
            raise UsageError(f"{wrong}: generator = features needs profile = paper and sharing = true")
        changed = {name: theirs for name, theirs in AUTHORS.items() if name not in chosen} if self.theirs else {}
        if self.upload == "predictions":  # the new generator exists only after the upload
            changed["samples_from"] = "previous"
        for name, value in changed.items():
            object.__setattr__(self, name, value)

    def init_server(self, env: Env) -> Distilled:
        """w_1 and θ^g_1 (line 2)."""
        weights, generator = env.initial(), weights_of(self.make_generator(env))
        none = torch.zeros(env.classes, dtype=torch.int64)
        return Distilled(weights, weights, generator, self.gather.init(env, weights), -1, {}, none, {})

    def init_client(self, env: Env) -> OwnDomain:
        """θ_k^d, the same for all at first."""
        return OwnDomain(self.duel(env, env.form(), {}).discriminator)

    def download(self, env: Env, server: Distilled) -> Handout:
        """w and θ^g (line 6)."""
        return Handout(server.weights, server.generator)

    def client(self, env: Env, state: OwnDomain, down: Handout, data: Samples) -> tuple[OwnDomain, Contribution]:
        """Lines 16–26: classifier and discriminator against the generator, batch by batch."""
        duel = self.duel(env, down.weights, state.discriminator)
        pair, generator = self.learner(env, duel), self.generator_learner(env, down.generator, self.weight_decay)
        stream = env.stream("noise")
        for x, y in self.batches(env, data, duel):
            imagined = generator.module(*self.draw(env, self.batch, stream)).detach()
            if pair.private:
                pair.step(*separate_losses(pair, duel, x, y, imagined))
            elif self.theirs:
                pair.step(authors_loss(duel, x, y, imagined[: len(x)], stream, rests=env.round > 2))
            else:
                pair.step(joint_loss(duel, x, y, imagined[: len(x)]))
            if not self.theirs or env.round < 5:
                duel.eval()  # generated samples alone do not move BatchNorm's statistics
                scores = duel.of_generated(generator.module(*self.draw(env, self.batch, stream)))[1]
                generator.step(deceive(scores, self.stable))
                duel.train()
        return OwnDomain(duel.discriminator), self.outgoing(env, duel, generator.weights, down.generator)

    def mixing(self) -> str | None:
        """The authors' penalty looks at points between real and generated samples."""
        return "profile = authors mixes real and generated samples; set profile=paper" if self.theirs else None

    def server(self, env: Env, server: Distilled, replies: Sequence[Reply[Any]]) -> Distilled:
        """Lines 9–13: average, make samples, weigh the clients on each of them, distil."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return server
        shares = [r.samples for r in kept] if self.theirs else None
        uploads = uploads_of(kept)
        average = mean([upload.weights for upload in uploads], shares)  # (6)
        generator = mean([upload.generator for upload in uploads], shares)  # (4)
        source = server.generator if self.samples_from == "previous" else generator
        images = self.samples(env, source, self.distill_samples)
        targets, factors, made = self.ensemble(env, uploads, images)
        weights = self.distilled(env, average, Lesson(images, targets), head=self.inner)  # (8)
        by_client = dict(zip([r.client for r in kept], factors.cpu(), strict=True))
        gallery = self.exhibit(env, server.gallery, generator)
        return Distilled(weights, average, generator, memory, env.round, by_client, made.cpu(), gallery)

    def models(self, env: Env, server: Distilled) -> Mapping[str, State]:
        """`global`, after distillation, and `average`, before it."""
        return {"global": server.weights, "average": server.average, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: Distilled) -> Mapping[str, Any]:
        """`domain_weights`: α̂ of each client that answered, by class of generated samples; `made`: their numbers."""
        known = dict(self.gather.facts(env, server.memory))
        if server.round != env.round:  # nobody answered in this round
            return known
        weights_by_client = {str(client): weights.tolist() for client, weights in server.factors.items()}
        return {**known, "domain_weights": weights_by_client, "made": server.made.tolist()}
