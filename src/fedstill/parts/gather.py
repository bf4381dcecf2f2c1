"""Gathers: what the server does with the replies before the method uses them.

Replies in, replies out, with a state of its own: `Everyone` passes them on, `Remember` (FedKF's T1) also keeps every
client's last model and from them the overall-clients aggregate, a robust rule leaves some out. `Chain` composes them.
Weight gathers read the field of an upload that carries weights, logit gathers the one that carries logits; a method
cannot tell which gather it has.
"""

from abc import ABC
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Late, Method, Reply
from fedstill.core.record import (
    Carries,
    State,
    carried,
    carries,
    declared,
    field_carrying,
    record,
    replaced,
)
from fedstill.core.registry import Registry
from fedstill.core.shelf import Shelf
from fedstill.core.value import Value, by_field, setting


@record
class Update:
    """What a client of a weight-averaging method sends."""

    weights: State = carries(Carries.WEIGHTS)


@record
class Changed:
    """What it sends when the overall aggregate is kept without slots on the server."""

    weights: State = carries(Carries.WEIGHTS)
    change: State = carries(Carries.CHANGE)
    version: int = carries(Carries.VERSION)


@record
class LastUpload:
    """What a client keeps when the server keeps no slot for it: its last uploaded weights."""

    weights: State
    version: int


@dataclass(frozen=True)
class Gather(Value, ABC):
    """Base of all gathers: passes every reply on and keeps nothing."""

    reads: ClassVar[tuple[str, ...]] = ()
    """What a field of an upload must carry for the gather to work on it; nothing: any upload will do."""
    late_replies: ClassVar[bool] = False
    """True where replies need not all have started from the same model, as in asynchronous rounds."""
    merges: ClassVar[bool] = False
    """True where one reply is passed on for several clients."""

    def misfit(self, method: Method[Any, Any, Any, Any]) -> str | None:
        """Why the gather cannot serve this method, if so."""
        return lacking(method.gathered(), *self.reads) if self.reads else None

    def init(self, env: Env, weights: State | None) -> Any:
        """The gather's state before the first round; `weights` are the initial global weights, if any travel."""
        return None

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """What the gather does with a round's replies.

        Args:
            env: the set-up, seen by the server in this round.
            state: the gather's own, after the last round; before the first, what `init` gave.
            replies: those that were admitted, each with an upload.

        Returns:
            The next state, and the replies the method is to use: fewer, other, or the same ones.
        """
        return state, list(replies)

    def models(self, env: Env, state: Any) -> Mapping[str, State]:
        """Global models that come from the gather's state."""
        return {}

    def facts(self, env: Env, state: Any) -> Mapping[str, Any]:
        """What to report of this round."""
        return {}

    def logits(self, env: Env, state: Any) -> Tensor | None:
        """The server's own logits on the public set, where the gather has a model that gives them."""
        return None

    def sends(self, upload: type) -> type:
        """The record that leaves a client whose method would send `upload`."""
        return upload

    def outgoing(self, env: Env, kept: Any, weights: State) -> tuple[Any, Any]:
        """The client's half: what it keeps, and the upload made from its trained `weights`; `kept` is of last time."""
        return kept, Update(weights)


gathers: Registry[Gather] = Registry("gather", Gather)


def lacking(upload: type, *wanted: str) -> str | None:
    """What an upload lacks for a part that works on a field that carries one of these things; None if it has it."""
    if field_carrying(upload, *wanted) is not None:
        return None
    return f"works on {' or '.join(wanted)}; clients of this method send {', '.join(declared(upload).values())}"


def weights_in(reply: Reply[Any]) -> State:
    """The weights in a reply, by what its fields carry."""
    weights: State = carried(reply.upload, Carries.WEIGHTS)
    return weights


def with_weights(reply: Reply[Any], weights: State) -> Reply[Any]:
    """The reply, its weights replaced."""
    return replace(reply, upload=replaced(reply.upload, weights, Carries.WEIGHTS))


@gathers.register("everyone")
@dataclass(frozen=True)
class Everyone(Gather):
    """Every reply counts, none is remembered."""

    late_replies = True


@record
class Overall:
    """`Remember`'s state: the sum over all clients of n_k times the last model, and those last models."""

    total: State
    samples: float
    initial: State
    slots: Shelf
    versions: Mapping[int, int]
    replaced: int
    drift: float


@gathers.register("remember")
@dataclass(frozen=True)
class Remember(Gather):
    """T1 of FedKF: every client's last model counts, active or not; the aggregate is reported as `overall`.

    One slot a client, w⁰ until it was first active; ŵ = Σ_k n_k slot_k / Σ_k n_k. The float64 sum is kept and one term
    replaced per reply, so a round costs the same for 20 clients and for 10,000; after as many replacements as there
    are slots the sum is made anew and the drift reported, which keeps the cost per reply constant.
    """

    reads = (Carries.WEIGHTS,)
    late_replies = True
    slots: Literal["server", "client"] = setting(
        "server",
        doc="client: each client remembers its own last upload and sends the change; the server needs sums only",
    )
    start: Literal["initial", "seen"] = setting(
        "initial", doc="clients not seen yet count with the initial weights, or (seen) not at all"
    )

    def misfit(self, method: Method[Any, Any, Any, Any]) -> str | None:
        """Slots on the clients need an upload that says how the weights changed."""
        if self.slots == "client" and field_carrying(method.gathered(), Carries.CHANGE) is None:
            return "slots = client: this method's clients do not send the change of their weights; use slots = server"
        return super().misfit(method)

    def init(self, env: Env, weights: State | None) -> Overall:
        """All slots hold w⁰."""
        assert weights is not None, "Remember needs a method that averages weights"
        samples = float(sum(env.sizes)) if self.start == "initial" else 0.0
        total = {name: tensor.double() * samples for name, tensor in weights.items()}
        return Overall(total, samples, weights, env.shelf("slots"), {}, 0, 0.0)

    def gather(self, env: Env, state: Overall, replies: Sequence[Reply[Any]]) -> tuple[Overall, list[Reply[Any]]]:
        """Replace the terms of the clients that answered."""
        if self.slots == "client":
            replies = [r for r in replies if r.upload.version == state.versions.get(r.client, 0)]
        sums, samples = [tensor.clone() for tensor in state.total.values()], state.samples
        for reply in replies:
            old = self._slot(state, reply)
            if old is None:
                samples += reply.samples
            changes = self._changes(reply, old, list(state.total))
            torch._foreach_mul_(changes, float(reply.samples))
            torch._foreach_add_(sums, changes)
        total = dict(zip(state.total, sums, strict=True))
        state = replace(state, total=total, samples=samples, replaced=state.replaced + len(replies))
        if self.slots == "client":
            counted = {r.client: r.upload.version + 1 for r in replies}
            return replace(state, versions={**state.versions, **counted}), list(replies)
        state = replace(state, slots=state.slots.put(env.round, {r.client: weights_in(r) for r in replies}))
        return self._refresh(env, state), list(replies)

    def _slot(self, state: Overall, reply: Reply[Any]) -> State | None:
        """What the client counts with so far; None if it does not count yet."""
        if self.start == "seen" and reply.client not in state.slots and reply.client not in state.versions:
            return None
        slot: State = state.slots.get(reply.client, state.initial)
        return slot

    def _changes(self, reply: Reply[Any], old: State | None, names: Sequence[str]) -> list[Tensor]:
        """w_k − slot_k in float64, tensor by tensor; the whole of w_k where there was no slot."""
        if self.slots == "client" and old is not None:
            change = carried(reply.upload, Carries.CHANGE)
            return [change[name].to(torch.float64, copy=True) for name in names]
        weights = weights_in(reply)
        changes = [weights[name].to(torch.float64, copy=True) for name in names]
        if old is not None:
            torch._foreach_sub_(changes, [old[name].double() for name in names])
        return changes

    def _refresh(self, env: Env, state: Overall) -> Overall:
        """Make the sum anew once every slot could have been replaced since the last time."""
        if state.replaced <= max(len(state.slots), 100):
            return state
        total = self.recompute(env, state)
        drift = max(float((total[n] - state.total[n]).abs().max()) for n in total) / max(state.samples, 1.0)
        return replace(state, total=total, replaced=0, drift=drift)

    def recompute(self, env: Env, state: Overall) -> State:
        """The sum, term by term over all clients."""
        unseen = state.samples - sum(env.sizes[k] for k in state.slots)
        total = {name: tensor.double() * unseen for name, tensor in state.initial.items()}
        for client in state.slots:
            for name, tensor in state.slots[client].items():
                total[name] += env.sizes[client] * tensor.double()
        return total

    def models(self, env: Env, state: Overall) -> Mapping[str, State]:
        """ŵ, the overall-clients aggregate."""
        if not state.samples:
            return {"overall": state.initial}
        return {"overall": {n: cast(t / state.samples, state.initial[n]) for n, t in state.total.items()}}

    def facts(self, env: Env, state: Overall) -> Mapping[str, Any]:
        """How far the running sum had drifted when it was last made anew."""
        return {"overall_drift": state.drift}

    def sends(self, upload: type) -> type:
        """With slots on the clients plain weights go with how the slot changed; other uploads have no room for it."""
        return Changed if self.slots == "client" and upload is Update else upload

    def outgoing(self, env: Env, kept: LastUpload | None, weights: State) -> tuple[LastUpload | None, Any]:
        """Without slots on the server, the client sends how its weights changed since its last upload."""
        if self.slots == "server":
            return kept, Update(weights)
        last = kept or LastUpload(env.initial(), 0)
        change = {name: tensor.double() - last.weights[name].double() for name, tensor in weights.items()}
        return LastUpload(weights, last.version + 1), Changed(weights, change, last.version)


@gathers.register("chain")
@dataclass(frozen=True)
class Chain(Gather):
    """Gathers one after the other: each gets the replies that the one before passes on."""

    gathers: tuple[Gather, ...] = setting((), doc="the gathers, first to last")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gathers:
            raise UsageError("gathers = (): a chain needs at least one")

    def misfit(self, method: Method[Any, Any, Any, Any]) -> str | None:
        """The first member's objection; and nobody can be remembered whose reply was merged with others."""
        for place, member in enumerate(self.gathers):
            if isinstance(member, Remember) and any(before.merges for before in self.gathers[:place]):
                return "remember after bucketing would hold buckets, not clients; put it before"
        return next((wrong for g in self.gathers if (wrong := g.misfit(method))), None)

    def init(self, env: Env, weights: State | None) -> tuple[Any, ...]:
        """Every member's state."""
        return tuple(g.init(env, weights) for g in self.gathers)

    def gather(self, env: Env, state: Any, replies: Sequence[Reply[Any]]) -> tuple[Any, list[Reply[Any]]]:
        """From member to member; one that gets no reply does nothing."""
        kept, states = list(replies), []
        for member, memory in zip(self.gathers, state, strict=True):
            memory, kept = member.gather(env, memory, kept) if kept else (memory, kept)
            states.append(memory)
        return tuple(states), kept

    def models(self, env: Env, state: Any) -> Mapping[str, State]:
        """All members' models; a later one's name wins."""
        return {k: m for g, s in zip(self.gathers, state, strict=True) for k, m in g.models(env, s).items()}

    def facts(self, env: Env, state: Any) -> Mapping[str, Any]:
        """All members' facts; a later one's wins, except for who answered, which the first one saw."""
        every = [g.facts(env, s) for g, s in zip(self.gathers, state, strict=True)]
        first = next(({"answered": f["answered"]} for f in every if "answered" in f), {})
        return {k: fact for f in [*every, first] for k, fact in f.items()}

    def logits(self, env: Env, state: Any) -> Tensor | None:
        """Those of the first member that has some."""
        found = (g.logits(env, s) for g, s in zip(self.gathers, state, strict=True))
        return next((logits for logits in found if logits is not None), None)


def gather_of(method: Method[Any, Any, Any, Any]) -> Gather | None:
    """The method's gather, if it has one."""
    return next((part for part in by_field(method).values() if isinstance(part, Gather)), None)


def mean(states: Sequence[State], shares: Sequence[float] | None = None) -> State:
    """The mean of weights (by shares, or plain), summed in float64; whole-number buffers are rounded."""
    shares = [1.0] * len(states) if shares is None else shares
    like = states[0]
    sums = [torch.zeros_like(tensor, dtype=torch.float64) for tensor in like.values()]
    for share, weights in zip(shares, states, strict=True):
        terms = [weights[name].to(torch.float64, copy=True) for name in like]
        torch._foreach_mul_(terms, float(share))
        torch._foreach_add_(sums, terms)
    torch._foreach_div_(sums, float(sum(shares)))
    return {name: cast(total, tensor) for total, (name, tensor) in zip(sums, like.items(), strict=True)}


def stepped(
    weights: State,
    towards: Sequence[State],
    shares: Sequence[float],
    trained: Collection[str],
    counts: Sequence[float] | None = None,
) -> State:
    """w + Σ_k share_k (w_k − w) for the `trained` parameters, in float64; the shares need not sum to 1.

    Buffers, which no gradient moves, become their mean (by counts, or plain).
    """
    step = mean([weights, *towards], [1 - sum(shares), *shares])
    return {**mean(towards, counts), **{name: step[name] for name in trained}}


def average(replies: Sequence[Reply[Any]]) -> State:
    """w = Σ n_k w_k / Σ n_k over the replies: the active-clients aggregate."""
    return mean([weights_in(r) for r in replies], [r.samples for r in replies])


def caught_up(replies: Sequence[Reply[Any]], weights: State) -> list[Reply[Any]]:
    """The replies as if all had started from `weights`, the server's own.

    A late one takes its way from there, as far as it counts: w + s (w_k − w_start), FedBuff's step; others are as
    they were. A gather comes before this: T1 keeps the model that a client has, wherever it started.
    """
    return [
        reply if reply.late is None else with_weights(reply, _moved(reply, reply.late, weights)) for reply in replies
    ]


def _moved(reply: Reply[Any], late: Late, weights: State) -> State:
    def stepped(name: str, trained: Tensor) -> Tensor:
        step = trained.double() - late.start[name].double()
        return cast(weights[name].double() + late.weight * step, trained)

    return {n: stepped(n, w) if _is_stepped(n, w) else w for n, w in weights_in(reply).items()}


def _is_stepped(name: str, tensor: Tensor) -> bool:
    """Statistics and counters make no steps: a variance carried on by a difference can end below 0."""
    return tensor.is_floating_point() and not name.endswith(("running_mean", "running_var"))


def cast(tensor: Tensor, like: Tensor) -> Tensor:
    """A float64 tensor in the type of `like`; whole numbers are rounded to."""
    return (tensor if like.is_floating_point() else tensor.round()).to(like.dtype)
