"""FedKF with a stationary generator, trained on the server: what its paper decided against, for comparison.

Not registered: it is an ablation of FedKF, used by its path (`fedstill.methods.fedkf_stationary:StationaryFedKF`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply
from fedstill.core.record import State, record
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.methods.fedkf import Imagination, KnowledgeFusion, Teaching
from fedstill.parts.averaging import Global
from fedstill.parts.gather import Update
from fedstill.parts.imagination import Drawing
from fedstill.parts.learner import Memory, frozen
from fedstill.parts.losses import class_entropy


@record
class Furnished(Global):
    """The server's state: w, the gather's memory, and the one generator with the state of its Adam."""

    generator: State
    adam: Memory


@record
class Furnishing(Teaching):
    """What goes down: w, the teacher ŵ, and the generator as the server left it."""

    generator: State


@dataclass(frozen=True)
class StationaryFedKF(KnowledgeFusion):
    """FedKF whose generator is the server's: trained on ŵ by (5) between rounds, and only used by the clients."""

    one_download = True
    generator_steps: int = setting(200, ge=1, doc="steps of the server's generator in a round")

    def init_server(self, env: Env) -> Furnished:
        """w⁰ and θ."""
        first = super().init_server(env)
        return Furnished(first.weights, first.memory, self.first_generator(env), {})

    def init_client(self, env: Env) -> Imagination:
        """A client has no generator."""
        return Imagination({}, {}, None)

    def imagined(self, env: Env, state: Drawing, count: int) -> Tensor | None:
        """Nothing is shown of a client's generator: it has none."""
        return None

    def download(self, env: Env, server: Global) -> Furnishing:
        """w, ŵ and g."""
        assert isinstance(server, Furnished)
        return Furnishing(server.weights, self.gather.models(env, server.memory).get("overall"), server.generator)

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Furnished:
        """Lines 7–10; then the generator learns from the new ŵ by (5)."""
        assert isinstance(server, Furnished)
        after = super().server(env, server, replies)
        overall = self.gather.models(env, after.memory).get("overall")
        generator = self.generator_learner(env, Drawing(server.generator, server.adam))
        if generator is None:
            return Furnished(after.weights, after.memory, {}, {})
        teacher, stream = frozen(env.module(overall or after.weights)), env.stream("generator")
        for _ in range(self.generator_steps):
            lesson = self.lesson(env, teacher, generator, stream, 0)
            generator.step(self.excitement(class_entropy(lesson.logits), lesson.logits, lesson.features))
        return Furnished(after.weights, after.memory, generator.weights, generator.memory)

    def client(self, env: Env, state: Imagination, down: Any, data: Samples) -> tuple[Imagination, Update]:
        """ClientUpdate (lines 13–22) without the generator's steps."""
        student = self.learner(env, env.module(down.weights))
        teacher = frozen(env.module(down.teacher or down.weights))
        generator = self.generator_learner(env, Drawing(down.generator, {}))
        stream = env.stream("noise")
        for x, y in self.pace(env).batches(env, data, student.module):
            with torch.no_grad():
                imagined = self.imagine(env, generator, stream)
                teacher_logits = teacher(imagined)
            student.step(*self.student_loss(student, x, y, imagined, teacher_logits))
        kept, upload = self.gather.outgoing(env, state.kept, student.weights)
        return Imagination({}, {}, kept), upload
