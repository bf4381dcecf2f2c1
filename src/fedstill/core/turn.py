"""A client's turn, and what can be wrapped around it.

A turn is a function: environment, state, download and data in; next state and upload out. The innermost turn is the
method's own. A wrapper takes a turn and gives another one: it may change what goes in (environment, data, download)
and what comes out (the upload), and keep a state of its own beside the method's. Attacks, noise for privacy,
compression and a site's policy are wrappers, and a method can tell of none of them:

    attack(policy(noise(compress(turn))))

The simulator's transports and the sites of a deployed run all call `turn`, so that a wrapper works everywhere alike.
"""

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from fedstill.core import rng
from fedstill.core.errors import FedstillError
from fedstill.core.method import Env, Method, Reply
from fedstill.core.record import declared, record
from fedstill.core.registry import Registry
from fedstill.core.value import Value

AnyMethod = Method[Any, Any, Any, Any]
Turn = Callable[[Env, Any, Any, Any], tuple[Any, Any]]
"""`turn(env, state, download, data)` gives the next state and the upload; a state of None is that of a first turn."""


@record
class Beside:
    """A client's state where a wrapper keeps something: the wrapper's own record, and the state of the turn inside."""

    own: Any
    inner: Any


@dataclass(frozen=True)
class Wrapper(Value, ABC):
    """Base of all that is wrapped around a turn: changes nothing. Override what the wrapper does.

    Random numbers come from `env.stream("a purpose of the wrapper's own")`, never from torch's own stream, so that the
    client's batches stay what they were.
    """

    once: ClassVar[bool] = False
    """True where every turn spends something: a site then answers a round once, or again with the same bits."""
    together: ClassVar[bool] = False
    """True where the server's half mixes all replies of a round: none can be read, or judged, by itself after it."""

    @property
    def reads_steps(self) -> bool:
        """Does it take uploaded weights as a step from those that came down? Then both must be of one network."""
        return False

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Why it cannot be wrapped around this method's turn, whose upload is of type `upload`; None if it can."""
        return None

    def beside(self, chain: "Sequence[Wrapper]") -> str | None:
        """Why it cannot be one of these wrappers, if so; they stand innermost first."""
        return None

    def fitted(self, method: AnyMethod) -> AnyMethod:
        """The method with the settings that the wrapper needs of it, where they differ."""
        return method

    def unfit(self, module: nn.Module) -> str | None:
        """Why it cannot be wrapped around the training of this model, if so."""
        return None

    def beyond(self, method: AnyMethod, env: Env) -> str | None:
        """What of it no client could keep to, by `env.sizes`: told before the first round."""
        return None

    def settled(self, method: AnyMethod, clients: int, active: int, rounds: int, turns: int) -> "Wrapper":
        """The wrapper with what it leaves open filled in from the run.

        `active` of `clients` clients take part in each of `rounds` rounds; no client has more than `turns` turns.
        """
        return self

    def deployed(self) -> "Wrapper":
        """The wrapper as it is where every party has a machine of its own; `UsageError` where it cannot be."""
        return self

    def facts(self, env: Env, states: Mapping[int, Any], heard: Collection[int]) -> Mapping[str, Any]:
        """What to report of a round.

        `states` are those of all its clients after it, where they are known here; `heard` are the clients whose replies
        were used.
        """
        return {}

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn with this wrapper around it. What it keeps for itself it puts into a `Beside` (see `apart`)."""
        return turn

    def uploads(self, upload: type) -> type:
        """The type of the record that leaves, where `upload` is that of the turn inside."""
        return upload

    def effects(self, upload: type) -> Mapping[str, str]:
        """For the ledger: what is done to which field of the record that leaves (`{"weights": "noise, σ = 1"}`)."""
        return {}

    def opened(self, env: Env, upload: Any) -> Any:
        """The server's half: the upload as the turn inside made it. Raises `FedstillError` for one it cannot read."""
        return upload

    def received(self, env: Env, replies: Sequence[Reply[Any]]) -> list[Reply[Any]]:
        """The server's half for a whole round: opens every reply; one that cannot be read becomes an error.

        `env` is the server's; replies with an error pass as they are. Override it where replies can only be read
        together.
        """
        return [reply if reply.error else self._opened(env.at(env.round, reply.client), reply) for reply in replies]

    def _opened(self, env: Env, reply: Reply[Any]) -> Reply[Any]:
        try:
            return replace(reply, upload=self.opened(env, reply.upload))
        except FedstillError as error:
            why = str(error)
        except Exception as error:  # it came from afar: whatever is wrong with it, the round goes on without it
            why = f"{type(error).__name__}: {error}"
        return replace(reply, upload=None, error=f"refused: {why.splitlines()[0]}")


wrappers: Registry[Wrapper] = Registry("wrapper", Wrapper)


@dataclass(frozen=True)
class Party:
    """A client as the transport sees it: its data, and what is wrapped around its turn, innermost first."""

    data: Any
    wrappers: tuple[Wrapper, ...] = ()


def turn(method: AnyMethod, env: Env, party: Party, state: Any, down: Any, alone: bool = True) -> tuple[Any, Any]:
    """One client's turn, wherever it runs: `env.at(round, client)`, its data, its state, its download.

    Methods draw from `env.stream`. Modules that draw from torch's own stream (dropout) find it keyed too, unless other
    turns go on in the same process (`alone` is false): then only they are not repeatable.
    """

    def innermost(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
        own_stream = rng.seeded(rng.key(env.seed, "torch", env.round, env.client)) if alone else nullcontext()
        with own_stream:
            state = method.init_client(env) if state is None else state
            return method.client(env, state, down, data)

    whole: Turn = innermost
    for wrapper in party.wrappers:
        whole = wrapper.around(method, whole)
    return whole(env, state, down, party.data)


def apart(state: Any) -> tuple[Any, Any]:
    """A wrapper's own state (None before its first turn) and the state of the turn inside."""
    return (state.own, state.inner) if isinstance(state, Beside) else (None, state)


def method_state(state: Any) -> Any:
    """The method's own part of a client's state, whatever wrappers keep beside it."""
    while isinstance(state, Beside):
        state = state.inner
    return state


def received(chain: Sequence[Wrapper], env: Env, replies: Sequence[Reply[Any]]) -> list[Reply[Any]]:
    """The server's half of all wrappers, the outermost first: replies as the methods' turns made them."""
    opened = list(replies)
    for wrapper in reversed(chain):
        opened = wrapper.received(env, opened)
    return opened


def misfit(method: AnyMethod, chain: Sequence[Wrapper]) -> tuple[Wrapper, str] | None:
    """The first wrapper that cannot be where it is, and why; None when all can."""
    upload = method.uploads()
    for wrapper in chain:
        wrong = wrapper.misfit(method, upload) or wrapper.beside(chain)
        if wrong:
            return wrapper, wrong
        upload = wrapper.uploads(upload)
    return None


def leaving(method: AnyMethod, chain: Sequence[Wrapper]) -> type:
    """The type of the record that leaves a client with these wrappers."""
    upload = method.uploads()
    for wrapper in chain:
        upload = wrapper.uploads(upload)
    return upload


def ledger(method: AnyMethod, chain: Sequence[Wrapper]) -> dict[str, str]:
    """Field by field, what leaves a client with these wrappers: what it carries, and what was done to it.

    Where a wrapper packs an upload into another record, each of its fields tells what was done to all that went in.
    """
    upload = method.uploads()
    done: dict[str, list[str]] = {}
    for wrapper in chain:
        packed = wrapper.uploads(upload)
        if packed is not upload:
            before = list(dict.fromkeys(effect for effects in done.values() for effect in effects))
            done = {name: list(before) for name in declared(packed)}
        upload = packed
        for name, effect in wrapper.effects(upload).items():
            done.setdefault(name, []).append(effect)
    return {name: "; ".join([carried, *done.get(name, [])]) for name, carried in declared(upload).items()}


def forged(method: AnyMethod, chain: Sequence[Wrapper], attack: Wrapper) -> tuple[Wrapper, ...]:
    """A malicious client's wrappers: the attack around all that leave the upload its form.

    So it undoes noise and policy, while its message is still compressed or veiled like everybody's: the server would
    not read another.
    """
    upload, place = method.uploads(), 0
    while place < len(chain) and chain[place].uploads(upload) is upload:
        place += 1
    return (*chain[:place], attack, *chain[place:])
