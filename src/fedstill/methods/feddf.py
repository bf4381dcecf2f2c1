"""Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning. NeurIPS 2020.
`mode = "logits"` is the form FedTKD compares with: no weights travel, every client distils the mean public logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import softmax

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.value import by_field, setting
from fedstill.data.samples import Samples
from fedstill.methods.logit_fusion import LogitFusion
from fedstill.parts.architectures import SERVER, holder, kinds_of, one_form, titled
from fedstill.parts.averaging import Broadcast
from fedstill.parts.distil import Lesson, Patience, distil, opinions, uploads_of
from fedstill.parts.forms import InForms
from fedstill.parts.gather import Everyone, Gather, Update, average
from fedstill.parts.learner import Learner, LocalTraining, Optimizer, optimizer_of


@record
class Fusion:
    """The server's state: a student (and the average it started from) for each architecture, and who has which."""

    students: Mapping[int, State]
    averages: Mapping[int, State]
    kinds: Mapping[int, int]
    memory: Any
    steps: Mapping[int, int]
    """Distillation steps of the last round, by architecture."""


@dataclass(frozen=True)
class Distillation(LocalTraining):
    """The settings of both forms."""

    private_learners = 1
    distill_lr: float = setting(1e-3, gt=0, doc="learning rate of distillation")
    distill_optimizer: Optimizer = setting("adam", doc="sgd or adam, for distillation")
    distill_batch: int = setting(64, ge=1, doc="batch size of distillation")
    distill_steps: int = setting(500, ge=1, doc="most steps of distillation in a round")
    patience: int = setting(50, ge=1, doc="steps without progress on held-out proxy samples that end distillation")
    proxy: int = setting(2000, ge=2, doc="proxy samples drawn for a round (all, where there are fewer)")
    held_out: float = setting(0.2, gt=0, lt=1, doc="share of them held out for early stopping")
    temperature: float = setting(1.0, gt=0, doc="t of the distillation")
    gather: Gather = setting(Everyone(), doc="what the server does with the replies first")


@dataclass(frozen=True)
class WeightFusion(Distillation, Method[Fusion, None, Broadcast, Update]):
    """The paper's form: clients send weights; the server distils their ensemble into a student per architecture."""

    needs_public = True
    one_architecture = False

    def init_server(self, env: Env) -> Fusion:
        """A student for each architecture, from the seed."""
        kinds = kinds_of(env)
        one_form(self.gather, kinds)
        students = {kind: env.initial(holder(kind)) for kind in sorted(set(kinds.values()))}
        return Fusion(students, students, kinds, self.gather.init(env, env.initial()), {})

    def init_client(self, env: Env) -> None:
        """A client keeps nothing."""
        return

    def download(self, env: Env, server: Fusion) -> Broadcast:
        """The student of the client's architecture."""
        assert env.client is not None
        return Broadcast(server.students[server.kinds[env.client]])

    def client(self, env: Env, state: None, down: Broadcast, data: Samples) -> tuple[None, Update]:
        """Local epochs from the student."""
        learner = self.learner(env, env.module(down.weights, env.client))
        self.train(env, learner, data)
        return None, Update(learner.weights)

    def server(self, env: Env, server: Fusion, replies: Sequence[Reply[Update]]) -> Fusion:
        """Average within each architecture, then distil the ensemble of all clients into each average."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        if not kept:
            return server
        lesson, exam = self.lesson(env, kept).split(env, self.held_out)
        students, averages, steps = dict(server.students), dict(server.averages), {}
        for kind in sorted({server.kinds[r.client] for r in kept}):
            averages[kind] = average([r for r in kept if server.kinds[r.client] == kind])
            module = env.module(averages[kind], holder(kind)).train()
            student = Learner(module, optimizer_of(self.distill_optimizer, module, self.distill_lr))
            steps[kind] = distil(
                env, student, lesson, batch=self.distill_batch, epochs=self.distill_steps, steps=self.distill_steps,
                temperature=self.temperature, patience=Patience(exam, self.patience),
            )  # fmt: skip
            students[kind] = student.weights
        return Fusion(students, averages, server.kinds, memory, steps)

    def lesson(self, env: Env, replies: Sequence[Reply[Any]]) -> Lesson:
        """Proxy samples of this round, and softmax of the clients' mean logits on them."""
        chosen = torch.randperm(len(env.public), generator=env.stream("proxy"))[: self.proxy]
        images: Tensor = env.public.inputs(chosen).to(env.device)
        teachers = [(upload.weights, r.client) for r, upload in zip(replies, uploads_of(replies), strict=True)]
        logits = opinions(env, teachers, images).mean(0)
        return Lesson(images, softmax(logits / self.temperature, -1))

    def template(self, env: Env) -> Update:
        """Weights of the client's architecture."""
        return Update(env.form(env.client))

    def models(self, env: Env, server: Fusion) -> Mapping[str, State]:
        """`global`, after distillation, and `average`, before it; with the client's number for other architectures."""
        after = {titled("global", kind): weights for kind, weights in server.students.items()}
        before = {titled("average", kind): weights for kind, weights in server.averages.items()}
        return {**after, **before, **self.gather.models(env, server.memory)}

    def architectures(self, env: Env, server: Fusion) -> Mapping[str, int]:
        """Whose architecture the models have that are not the server's."""
        others = [kind for kind in server.students if kind != SERVER]
        return {titled(name, kind): kind for kind in others for name in ("global", "average")}

    def facts(self, env: Env, server: Fusion) -> Mapping[str, Any]:
        """How many steps distillation took until it stopped."""
        steps = {titled("global", kind): count for kind, count in server.steps.items()}
        return {**self.gather.facts(env, server.memory), "distill_steps": steps}


@methods.register("feddf")
@dataclass(frozen=True)
class FedDF(Distillation, InForms):
    """The server distils the ensemble of the clients' models into their average, on unlabelled samples.

    Teacher: the mean of the clients' logits on proxy samples; one student for each architecture.
    """

    paper = "Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020"
    needs_public = True
    one_architecture = False
    mode: Literal["weights", "logits"] = setting("weights", doc="logits: FedTKD's form, clients send logits only")

    @property
    def form(self) -> WeightFusion | LogitFusion:
        """The paper's, or FedTKD's."""
        form = WeightFusion if self.mode == "weights" else LogitFusion
        return form(**by_field(self, form))
