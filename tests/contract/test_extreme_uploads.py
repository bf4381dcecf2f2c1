"""Uploads of the right form with numbers at the edge of what is let in: they end no server's step."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method, without_shelves
from torch import Tensor

from fedstill.core.loop import admit, downloads
from fedstill.core.method import methods
from fedstill.core.record import leaves
from fedstill.core.shelf import Storage
from fedstill.core.value import by_field
from fedstill.experiment.run import transport
from fedstill.experiment.stage import stage

FEDERATED = [name for name in sorted(methods) if methods[name].federated]
EDGES = (0, -1, 10**9, -(10**9))


def filled(tensor: Tensor, number: int) -> Tensor:
    """A tensor of the same form, all of one number."""
    return torch.full_like(tensor, number % 256 if tensor.dtype == torch.uint8 else number)


def spoilt(value: Any, number: int) -> Any:
    """The same value with every number in it replaced by this one."""
    match value:
        case Tensor():
            return filled(value, number)
        case dict():
            return {key: spoilt(item, number) for key, item in value.items()}
        case tuple():
            return tuple(spoilt(item, number) for item in value)
        case int() | float() if not isinstance(value, bool):
            return type(value)(number)
    return value


def extremes(upload: Any) -> Iterator[tuple[str, Any]]:
    """Uploads of which one field is all zero, negative or huge."""
    values = by_field(upload)
    for field in fields(upload):
        for number in EDGES:
            yield f"{field.name} = {number}", replace(upload, **{field.name: spoilt(values[field.name], number)})


@pytest.mark.parametrize("name", FEDERATED)
def test_an_upload_at_the_edge_ends_no_servers_step(name: str) -> None:
    """One of three clients: what is refused is named; what is let in leaves the server's numbers finite."""
    plan = small_experiment(small_method(name), clients=3, active=1.0, samples=120)
    ready = stage(plan, Storage())
    method, env = plan.method, ready.env.at(0)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        replies = link.exchange(env, downloads(method, env, method.init_server(env), [0, 1, 2]))
    for what, upload in extremes(replies[2].upload):
        good, wrong = admit(method, env, [replace(r, upload=upload) if r.client == 2 else r for r in replies])
        assert [r.client for r in good if r.client != 2] == [0, 1], what
        if 2 in wrong:
            assert wrong[2].isprintable()
            continue
        server = method.server(env, method.init_server(env), good)
        for path, tensor in leaves(without_shelves(server)):
            assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), (what, path)
