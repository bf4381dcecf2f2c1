"""Weights that clients follow by steps: who has the last copy is told the change since, in factors, not the whole.

The server keeps its last steps and which version every client is known to have. A client that was away longer, or was
never there, gets the weights. A client whose reply was lost is further than the server knows: it leaves out the steps
it has taken already. Server and clients add the same numbers in the same order, so their copies agree to the bit.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from fedstill.core.errors import RunError
from fedstill.core.record import Carries, State, carries, record, size
from fedstill.parts.low_rank import Factors, compressed, restored

KEPT = 10
"""How many steps the server keeps; who missed more gets the weights."""


@record
class Copy:
    """What comes down: the weights of a version, or the steps that lead on from it; no version: weights only."""

    weights: State = carries(Carries.WEIGHTS)
    steps: tuple[Factors, ...] = ()
    version: int | None = None


@record
class Trail:
    """The server's half: the present version, the steps that led to it, and the version each client has."""

    version: int = 0
    steps: tuple[Factors, ...] = ()
    held: Mapping[int, int] | None = None


@record
class Followed:
    """The client's half: its copy and its version."""

    weights: State
    version: int


def copy_for(trail: Trail, weights: State, client: int | None) -> Copy:
    """What a client is told of these weights: steps where it can follow them and they are fewer bytes."""
    held = None if client is None or trail.held is None else trail.held.get(client)
    missed = KEPT + 1 if held is None else trail.version - held
    if held is None or missed > len(trail.steps):
        return Copy(weights, (), trail.version)
    steps = trail.steps[len(trail.steps) - missed :]
    return Copy({}, steps, held) if size(steps) < size(weights) else Copy(weights, (), trail.version)


def followed(copy: Copy, own: Followed | None) -> Followed:
    """The client's copy after what it was told; `own`: the one it had."""
    if copy.weights or copy.version is None:
        return Followed(copy.weights, copy.version or 0)
    if own is None or own.version < copy.version:
        raise RunError(f"this client's copy of the shared model is lost: it was told the steps since {copy.version}")
    weights = own.weights
    for factors in copy.steps[own.version - copy.version :]:
        weights = added(weights, restored(factors, weights))
    return Followed(weights, copy.version + len(copy.steps))


def stepped_on(
    trail: Trail, weights: State, step: State, energy: float, clients: Collection[int]
) -> tuple[Trail, State]:
    """The trail and the weights after a step, compressed to a share of its energy; `clients` had the last version."""
    factors = compressed(step, energy)
    held = {**(trail.held or {}), **dict.fromkeys(clients, trail.version)}
    after = added(weights, restored(factors, weights))
    return replace(trail, version=trail.version + 1, steps=(*trail.steps, factors)[-KEPT:], held=held), after


def added(weights: State, step: State) -> State:
    """w + Δ, tensor by tensor."""
    return {name: tensor + step[name] for name, tensor in weights.items()}
