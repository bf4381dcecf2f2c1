"""Heads that travel: bodies differ from client to client, the layers after the features are the same everywhere."""

from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.method import Env
from fedstill.core.record import State
from fedstill.core.rng import key
from fedstill.parts.learner import weights_of


def head_of(env: Env, of: int | None = None) -> State:
    """The form of the head of `of`'s network (the server's for None); its numbers do not matter."""
    module: Any = env.build(of, None)
    return weights_of(module.head)


def initial_head(env: Env) -> State:
    """The head that all begin with: that of the server's network, from the run's seed."""
    module: Any = env.build(None, key(env.seed, "model", None))
    return weights_of(module.head)


def with_head(env: Env, weights: State, head: State, of: int | None) -> Any:
    """A module of `of`'s architecture with these weights, but this head."""
    module: Any = env.module(weights, of)
    module.head.load_state_dict(head)
    return module


def same_heads(env: Env, title: str) -> None:
    """Refuse networks whose heads differ, since one head is to serve them all."""
    wanted = {name: tuple(tensor.shape) for name, tensor in head_of(env).items()}
    for k in range(env.clients):
        shapes = {name: tuple(tensor.shape) for name, tensor in head_of(env, k).items()}
        if shapes != wanted:
            raise UsageError(
                f"models: {title} shares the head, so all need features of one length and one form of head; "
                f"client {k} has {shapes}, the server {wanted}"
            )
