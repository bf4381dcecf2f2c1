"""Uploads as vectors, for those who work on sums of them: clipping and noise by client, and secure sums.

A method says by `server_sums` that its server needs only the sum of what its clients send. Then it may as well be given
the mean: every reply gets the same upload, which is what the sum, divided, says of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import UsageError
from fedstill.core.loop import REFUSED
from fedstill.core.method import Reply
from fedstill.core.record import Carries, fault
from fedstill.core.turn import AnyMethod
from fedstill.core.value import by_field
from fedstill.parts.gather import Everyone, Remember, gather_of

ADDITIVE = (Carries.WEIGHTS, Carries.CHANGE, Carries.CONTROL)
"""What can be summed: as many numbers as the model has, or a part of them."""


def not_sums(method: AnyMethod, upload: type) -> str | None:
    """Why a server that knows only sums cannot serve this method, if so."""
    if method.server_sums is None:
        return "the server of this method needs every client's own upload, not only their sum"
    for f in fields(upload):
        if f.metadata["carries"] not in (*ADDITIVE, Carries.VERSION):
            return f"clients of this method also send {f.metadata['carries']}, which is not summed"
    gather = gather_of(method)
    if gather is None or isinstance(gather, Everyone):
        return None
    if method.server_sums == "plain":
        return "clients of this method count alike, in a gather by samples; must be gather = everyone"
    if isinstance(gather, Remember) and gather.slots == "client":
        if gather.start == "initial":
            return None
        return "start = seen: from sums nobody can tell who is new; set gather={name='remember', start='initial'}"
    return "the gather looks at single uploads; must be everyone, or remember with slots = client"


def summing(method: AnyMethod) -> AnyMethod:
    """The method with T1's slots on the clients, where it would keep them on the server; without T1 if it cannot."""
    gather = gather_of(method)
    if method.server_sums is None or not isinstance(gather, Remember):
        return method
    kept = replace(gather, slots="client") if method.server_sums == "samples" else Everyone()
    return replace(method, gather=kept)  # type: ignore[call-arg]


def counters(module: nn.Module) -> str | None:
    """Why a model's weights are no vector of real numbers, if so."""
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            return (
                f"{name} is a counter, which cannot be clipped or masked; take a -gn model (see `fedstill ls models`)"
            )
    return None


@dataclass(frozen=True)
class Part:
    """Where a tensor of an upload stands in its vector: field, name, first place, and form."""

    field: str
    name: str
    start: int
    like: Tensor


def parts(upload: Any) -> list[Part]:
    """Where everything additive in an upload stands in its vector."""
    pieces, start = [], 0
    held = by_field(upload)
    for f in fields(upload):
        if f.metadata["carries"] in ADDITIVE:
            for name, tensor in held[f.name].items():
                pieces.append(Part(f.name, name, start, tensor))
                start += tensor.numel()
    return pieces


def vector(upload: Any) -> Tensor:
    """Everything additive in an upload, as one float64 vector."""
    return torch.cat([part.like.detach().cpu().double().flatten() for part in parts(upload)])


def rebuilt(upload: Any, values: Tensor) -> Any:
    """The upload with these numbers instead of its own; whatever is not additive stays."""
    states: dict[str, dict[str, Tensor]] = {}
    for part in parts(upload):
        piece = values[part.start : part.start + part.like.numel()].view(part.like.shape)
        states.setdefault(part.field, {})[part.name] = piece.to(part.like.dtype)
    return replace(upload, **states)


def origin(upload: Any, down: Any) -> Tensor:
    """The vector of an upload that changes nothing: the weights that came down, and no change."""
    pieces = []
    for part in parts(upload):
        carries = next(f.metadata["carries"] for f in fields(upload) if f.name == part.field)
        base = down.weights.get(part.name) if carries is Carries.WEIGHTS else torch.zeros_like(part.like)
        if base is None or base.shape != part.like.shape:
            raise UsageError(
                "models: the weights that came down are of another network than a client's, so its upload cannot be "
                "taken as a difference from them; give all one model, or leave compression out"
            )
        pieces.append(base.detach().cpu().double().flatten())
    return torch.cat(pieces)


def readable(replies: Sequence[Reply[Any]]) -> list[Reply[Any]]:
    """The replies; one whose upload is not of the method's form, or not finite, is refused: it would spoil the sum."""
    checked = []
    for reply in replies:
        wrong = None if reply.error or reply.form is None else fault(reply.upload, reply.form)
        checked.append(replace(reply, upload=None, error=REFUSED + wrong) if wrong else reply)
    return checked


def shared(replies: Sequence[Reply[Any]], mean: Tensor, samples: Sequence[float]) -> list[Reply[Any]]:
    """The replies, each with the mean for its upload, and counting with `samples`."""
    return [
        replace(reply, upload=rebuilt(reply.upload, mean), samples=count)
        for reply, count in zip(replies, samples, strict=True)
    ]
