"""Wu, Wu, Lyu, Huang, Xie: Communication-Efficient Federated Learning via Knowledge Distillation. Nature
Communications 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedstill.core.method import Env, Method, Reply, methods
from fedstill.core.record import State, record
from fedstill.core.rng import seeded
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.models.conditional import feature_width
from fedstill.parts.gather import Everyone, Gather, Update, mean
from fedstill.parts.learner import LocalTraining, Memory, weights_of
from fedstill.parts.low_rank import LowRank, compressed, let_through, misshapen, numbers
from fedstill.parts.mutual import adaptive_losses
from fedstill.parts.trail import Copy, Followed, Trail, added, copy_for, followed, stepped_on


@record
class Mentee:
    """The server's state: the mentee, the share of the last round's numbers sent, who has what, the gather's memory."""

    weights: State
    sent: float
    trail: Trail = Trail()
    memory: Any = None


@record
class Mentor:
    """What stays on a client: mentor, its optimiser's state, W_h between the models' features, a copy of the mentee."""

    weights: State
    memory: Memory
    bridge: State
    mentee: Followed | None = None


@methods.register("fedkd")
@dataclass(frozen=True)
class FedKD(LocalTraining, Method[Mentee, Mentor, Copy, LowRank]):
    """A large private model and a small shared one teach each other; the small one's update travels compressed.

    Adaptive mutual distillation: the surer both models are of the labels, the more they learn from each other.
    """

    paper = (
        "Wu et al., Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications 2022"
    )
    one_architecture = False
    needs_features = True
    one_download = True
    distil: float = setting(1.0, ge=0, doc="weight of what the models learn from each other; 0: nothing")
    energy_start: float = setting(
        0.95, gt=0, le=1, doc="share of energy that factors hold in the first round (T_start)"
    )
    energy_end: float = setting(0.98, gt=0, le=1, doc="the same after `ramp` rounds (T_end); 1: all of it")
    ramp: int = setting(20, ge=1, doc="rounds from the first share to the last")
    both_ways: bool = setting(False, doc="the server's step comes down in factors too, to clients that can follow it")
    gather: Gather = setting(Everyone(), doc="what the server does with the mentees that replies stand for")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "one_download", not self.both_ways)  # what a client is told depends on what it has

    def energy(self, env: Env) -> float:
        """T(t) = T_start + (T_end − T_start) t."""
        return self.energy_start + (self.energy_end - self.energy_start) * min(env.round / self.ramp, 1.0)

    def init_server(self, env: Env) -> Mentee:
        """The mentee, from the seed."""
        weights = env.initial()
        return Mentee(weights, 1.0, memory=self.gather.init(env, weights))

    def init_client(self, env: Env) -> Mentor:
        """A mentor of the client's own architecture."""
        return Mentor(env.initial(env.client), {}, weights_of(self.bridge(env)))

    def bridge(self, env: Env, weights: State | None = None) -> nn.Linear:
        """W_h: the mentee's features to the mentor's."""
        widths = [feature_width(env.module(None, of), env.kind) for of in (None, env.client)]
        with seeded(env.key("bridge")):
            made = nn.Linear(widths[0], widths[1], bias=False)
        made.load_state_dict(weights or made.state_dict())
        return made.to(env.device)

    def download(self, env: Env, server: Mentee) -> Copy:
        """The mentee, or the steps that lead to it."""
        return copy_for(server.trail, server.weights, env.client) if self.both_ways else Copy(server.weights)

    def client(self, env: Env, state: Mentor, down: Copy, data: Samples) -> tuple[Mentor, LowRank]:
        """Mentor, mentee and W_h step on every batch; then the mentee's change goes up, compressed."""
        mentor = self.learner(env, env.module(state.weights, env.client)).recall(state.memory)
        received = followed(down, state.mentee)
        mentee = self.learner(env, env.module(received.weights))
        bridge = self.learner(env, self.bridge(env, state.bridge))
        for x, y in self.batches(env, data, nn.ModuleList([mentor.module, mentee.module])):
            ends: list[Any] = [mentor.module, mentee.module]
            features = [end.features(x) for end in ends]
            logits = [end.head(f) for end, f in zip(ends, features, strict=True)]
            for_mentor, for_mentee, for_bridge = adaptive_losses(features, logits, y, bridge.module, self.distil)
            mentor.step(for_mentor)
            mentee.step(for_mentee)
            if self.distil:
                bridge.step(for_bridge)
        change = {name: tensor - received.weights[name] for name, tensor in mentee.weights.items()}
        kept = Mentor(mentor.weights, mentor.memory, bridge.weights, received if self.both_ways else None)
        return kept, LowRank(compressed(change, self.energy(env)))

    def server(self, env: Env, server: Mentee, replies: Sequence[Reply[LowRank]]) -> Mentee:
        """w ← w + Σ n_k Δ_k / Σ n_k, Δ_k (and, both ways, their mean too) as far as factors tell."""
        whole = len(replies) * sum(tensor.numel() for tensor in server.weights.values())
        share_sent = sum(numbers(r.upload.factors) for r in replies) / whole
        memory, changes, samples = let_through(env, self.gather, server.memory, server.weights, replies)
        if not changes:
            return replace(server, sent=share_sent, memory=memory)
        step = mean(changes, samples)
        if not self.both_ways:
            return Mentee(added(server.weights, step), share_sent, memory=memory)
        who, energy = [r.client for r in replies], self.energy(env)
        trail, weights = stepped_on(server.trail, server.weights, step, energy, who)
        return Mentee(weights, share_sent, trail, memory)

    def gathered(self) -> type:
        """A gather works on the mentees that factors stand for."""
        return Update

    def template(self, env: Env) -> LowRank:
        """Factors of the mentee's tensors; how many there are is the client's affair (see `objection`)."""
        return LowRank({name: {"whole": tensor} for name, tensor in env.form().items()})

    def objection(self, env: Env, upload: LowRank) -> str | None:
        """Factors that do not make the mentee's tensors are refused."""
        return misshapen(upload.factors, env.form())

    def models(self, env: Env, server: Mentee) -> Mapping[str, State]:
        """`mentee`; and what the gather adds."""
        return {"mentee": server.weights, **self.gather.models(env, server.memory)}

    def own(self, env: Env, state: Mentor) -> State:
        """The client's mentor."""
        return state.weights

    def facts(self, env: Env, server: Mentee) -> Mapping[str, Any]:
        """`sent`: the share of the mentee's numbers that clients had to send in the last round; T of this one."""
        return {"sent": server.sent, "energy": self.energy(env), **self.gather.facts(env, server.memory)}
