"""Who has which network, where clients differ: an architecture is named by the first client that has it."""

from collections.abc import Mapping

from fedstill.core.method import Env

SERVER = -1
"""Stands for the server's own architecture."""


def kinds_of(env: Env) -> Mapping[int, int]:
    """For every client, the first client whose network has the same layers, names and shapes; `SERVER` if it does."""
    known = {_portrait(env, None): SERVER}
    return {k: known.setdefault(_portrait(env, k), k) for k in range(env.clients)}


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
