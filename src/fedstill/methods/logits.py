"""What the methods share whose clients speak only by logits on a public set: FedMD, FedDistill, FedTKD.

In its turn a client studies the public set with the server's wisdom, trains on its private samples, and uploads its
logits on public samples. Networks may differ from client to client; no weights travel.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedstill.core import rng
from fedstill.core.method import Env, Method, Reply
from fedstill.core.record import State
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.gather import Everyone, Gather
from fedstill.parts.learner import Learner, LocalTraining, Optimizer, minibatches, predict, refuses_one, weights_of
from fedstill.parts.losses import cross_entropy
from fedstill.parts.public_logits import Exchange, Private, PublicLogits, Voice, Wisdom


@dataclass(frozen=True)
class LogitExchange(LocalTraining, Method[Exchange, Private, Wisdom, PublicLogits]):
    """Study, train, speak; a method says how its clients study and what the server makes of their logits."""

    needs_public = True
    one_architecture = False
    private_learners = 1
    one_download = True
    lr: float = setting(1e-3, gt=0, doc="learning rate of the clients")
    epochs: int = setting(1, ge=1, doc="epochs on the private set in a round")
    optimizer: Optimizer = setting("adam", doc="sgd or adam")
    gather: Gather = setting(Everyone(), doc="whose logits count (identify: only those of trusted clients)")

    @abstractmethod
    def study(self, env: Env, learner: Learner, turns: int, down: Wisdom) -> None:
        """The client's lessons on the public set; `turns` counts the turns it had before."""

    def conclude(
        self, env: Env, logits: Tensor, labels: Tensor, server: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Mapping[str, float]]:
        """Global logits, class weights and seconds spent, from the logits of the believed clients and of the server.

        Here: the clients' mean, and no class weights.
        """
        began = time.perf_counter()
        return logits.mean(0), None, {"fuse": time.perf_counter() - began}

    def rows(self, env: Env) -> Tensor:
        """The public samples that the global logits of this round were made on."""
        return torch.arange(len(env.public))

    def init_server(self, env: Env) -> Exchange:
        """No global logits yet."""
        return Exchange(Wisdom(None, None, None), self.gather.init(env, None), -1, {}, {})

    def init_client(self, env: Env) -> Private:
        """A model of the client's own architecture."""
        with rng.seeded(env.key("public head")):
            voice = Voice(env.module(None, env.client), env.public_classes)
        return Private(env.initial(env.client), weights_of(voice.head), {}, 0)

    def download(self, env: Env, server: Exchange) -> Wisdom:
        """Global logits and class weights."""
        return server.wisdom

    def client(self, env: Env, state: Private, down: Wisdom, data: Samples) -> tuple[Private, PublicLogits]:
        """Lessons on the public set, then epochs on the private one; then the public logits."""
        voice = Voice(env.module(state.weights, env.client), env.public_classes).to(env.device)
        voice.head.load_state_dict(state.head)
        learner = self.learner(env, voice).recall(state.memory)
        self.study(env, learner, state.turns, down)
        for x, y in self.batches(env, data, voice):
            with learner.watched():
                own = voice.own(x)
            learner.step(cross_entropy(own, y))
        rows = self.rows(env.at(env.round + 1))
        upload = PublicLogits(predict(voice, env.public.inputs(rows).to(env.device)).cpu(), rows)
        return Private(weights_of(voice.own), weights_of(voice.head), learner.memory, state.turns + 1), upload

    def lessons(
        self, env: Env, learner: Learner, rows: Tensor, epochs: int = 1, purpose: str = "public"
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The learner's logits on batches of these public samples, their labels, and their places among the rows."""
        images, labels = env.public.inputs(rows).to(env.device), env.public.y[rows].to(env.device)
        places, alone = torch.arange(len(rows), device=env.device), refuses_one(learner.module)
        for x, y, at in minibatches(
            env, purpose, images, labels, places, size=self.batch, epochs=epochs, drop_single=alone
        ):
            yield learner.freely(x), y, at

    def server(self, env: Env, server: Exchange, replies: Sequence[Reply[PublicLogits]]) -> Exchange:
        """Whom to believe is the gather's affair; what follows from their logits, the method's."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        spoken = {r.client: r.upload for r in replies if r.upload is not None}
        index = next(iter(spoken.values())).index
        labels = env.public.y[index]
        accuracy = {k: float((u.logits.argmax(-1) == labels).double().mean()) for k, u in spoken.items()}  # (28)
        heard = replace(server, memory=memory, round=env.round, accuracy=accuracy, seconds={})
        if not kept:
            return heard
        own = self.gather.logits(env, memory)
        stack = torch.stack([spoken[r.client].logits for r in kept])
        logits, weights, seconds = self.conclude(env, stack, labels, None if own is None else own[index])
        return replace(heard, wisdom=Wisdom(logits, index, weights), seconds=seconds)

    def template(self, env: Env) -> PublicLogits:
        """A row of logits for every public sample of the next round, in order."""
        rows = self.rows(env.at(env.round + 1))
        return PublicLogits(torch.zeros(len(rows), env.public_classes or env.classes), rows)

    def objection(self, env: Env, upload: PublicLogits) -> str | None:
        """Logits under the wrong index are refused."""
        right = torch.equal(upload.index, self.rows(env.at(env.round + 1)))
        return None if right else "the index is not that of the public samples"

    def own(self, env: Env, state: Private) -> State:
        """The client's private model."""
        return state.weights

    def facts(self, env: Env, server: Exchange) -> Mapping[str, Any]:
        """Accuracy of global (27) and clients' logits (28) on the public set, class weights, seconds per module."""
        if server.round != env.round:  # nobody answered in this round
            return {}
        known = {"answered": list(server.accuracy), **self.gather.facts(env, server.memory)}
        known["client_logits"] = list(server.accuracy.values())  # in the order of `answered`
        wisdom = server.wisdom
        if wisdom.logits is not None:
            hits = wisdom.logits.argmax(-1) == env.public.y[wisdom.index]
            known["global_logits"] = float(hits.double().mean())
        if wisdom.weights is not None:
            known["class_weights"] = wisdom.weights.tolist()
        known["module_seconds"] = {**known.get("module_seconds", {}), **server.seconds}
        return known
