"""What weight-averaging methods share: w goes down, w_k comes up, the server averages what its gather passes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Env, Method, Reply
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.value import setting
from fedstill.parts.gather import Gather, Remember, Update, average, caught_up
from fedstill.parts.learner import LocalTraining


@record
class Global:
    """The server's state: the active aggregate w, and what the gather remembers."""

    weights: State
    memory: Any


@record
class Broadcast:
    """What every active client gets: w."""

    weights: State = carries(Carries.WEIGHTS)


@dataclass(frozen=True)
class Averaging(LocalTraining, Method[Global, Any, Any, Update]):
    """The half that weight-averaging methods share: w goes down, w_k comes up, the server averages."""

    one_download = True
    late_replies = True
    gather: Gather = setting(Remember(), doc="what the server does with the replies (remember: also report `overall`)")

    def init_server(self, env: Env) -> Global:
        """w⁰, from the seed."""
        weights = env.initial()
        return Global(weights, self.gather.init(env, weights))

    def init_client(self, env: Env) -> Any:
        """A client keeps nothing, unless its gather asks it to."""
        return None

    def download(self, env: Env, server: Global) -> Any:
        """w."""
        return Broadcast(server.weights)

    def server(self, env: Env, server: Global, replies: Sequence[Reply[Update]]) -> Global:
        """w ← Σ n_k w_k / Σ n_k over the active clients."""
        memory, kept = self.gather.gather(env, server.memory, replies)
        return Global(average(caught_up(kept, server.weights)) if kept else server.weights, memory)

    def template(self, env: Env) -> Update:
        """Weights of the global model's form."""
        _, upload = self.gather.outgoing(env, None, env.form())
        return upload  # type: ignore[no-any-return]

    def uploads(self) -> type:
        """With T1's slots on the clients, also how the slot changed."""
        return self.gather.sends(super().uploads())

    def models(self, env: Env, server: Global) -> Mapping[str, State]:
        """`active` (ACA) and, with `Remember`, `overall` (OCA)."""
        return {"active": server.weights, **self.gather.models(env, server.memory)}

    def facts(self, env: Env, server: Global) -> Mapping[str, Any]:
        """What the gather reports."""
        return self.gather.facts(env, server.memory)
