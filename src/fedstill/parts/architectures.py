"""Who has which network, where clients differ: an architecture is named by the first client that has it."""

from collections.abc import Mapping

from fedstill.core.errors import UsageError
from fedstill.core.method import Env
from fedstill.core.record import State
from fedstill.core.value import plain
from fedstill.parts.gather import Everyone, Gather

SERVER = -1
"""Stands for the server's own architecture."""


def kinds_of(env: Env) -> Mapping[int, int]:
    """For every client, the first client whose network has the same layers, names and shapes; `SERVER` if it does."""
    known = {_portrait(env, None): SERVER}
    return {k: known.setdefault(_portrait(env, k), k) for k in range(env.clients)}


def one_form(gather: Gather, kinds: Mapping[int, int]) -> None:
    """Refuse a gather that compares or sums models where clients' networks (by `kinds_of`) are not the server's."""
    if not isinstance(gather, Everyone) and set(kinds.values()) != {SERVER}:
        name = plain(gather)["name"]
        raise UsageError(
            f"gather = {name}: works on models of one form; these clients' networks differ, so it must be everyone"
        )


def same_form(one: State, other: State) -> bool:
    """Do two models have the same tensors, by name and shape?"""
    return {n: t.shape for n, t in one.items()} == {n: t.shape for n, t in other.items()}


def holder(kind: int) -> int | None:
    """Whose architecture it is, as `Env` asks for it: a client, or None for the server's."""
    return None if kind == SERVER else kind


def titled(name: str, kind: int) -> str:
    """A model's name in reports; those of other architectures than the server's say whose they are.

    >>> titled("global", SERVER), titled("global", 4)
    ('global', 'global (as client 4)')
    """
    return name if kind == SERVER else f"{name} (as client {kind})"


def _portrait(env: Env, client: int | None) -> str:
    shapes = [(name, tuple(tensor.shape)) for name, tensor in env.form(client).items()]
    return f"{env.build(client, None)!r} {shapes}"
