"""How much one site may weigh: its share of all samples, and the size of its update against the others'.

A site says itself how many samples it has, and any finite weights pass the form: without a cap one site could make the
model its own. Both caps are settings of the experiment (`largest_share`, `largest_update`); 1 and 0 turn them off.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fedstill.core.record import leaves
from fedstill.core.value import by_field

FEWEST = 3
"""With fewer sites there is no majority to measure one against."""


def capped(sizes: Sequence[int], share: float) -> tuple[int, ...]:
    """Sample counts of which none is more than `share` of their sum, as near to the ones given as can be.

    With three sites of 10, 10 and 980 and a share of 1/2, the last counts as many as the others together:

    >>> capped([10, 10, 980], 0.5)
    (10, 10, 20)
    >>> capped([100, 120, 90], 0.5)
    (100, 120, 90)
    """
    if len(sizes) < FEWEST or share >= 1:
        return tuple(sizes)
    order = sorted(sizes, reverse=True)
    for held, size in enumerate(order):  # the `held` largest sites are held down to the same count
        room = 1 - held * share
        if room <= 0:
            break
        most = share * sum(order[held:]) / room
        if size <= most:
            return tuple(min(one, max(1, int(most))) for one in sizes) if held else tuple(sizes)
    return (min(sizes),) * len(sizes)  # so small a share can only be an equal one


def outsized(round: Mapping[int, tuple[Any, Any]], times: float) -> dict[int, str]:
    """The clients whose update is more than `times` the round's median, and what to say of them.

    `round` has each client's upload and download. What changed since the download is measured where it holds tensors of
    the same names, else the upload's own tensors.
    """
    if not times or len(round) < FEWEST:
        return {}
    norms = {k: norm(upload, down) for k, (upload, down) in round.items()}
    usual = median(norms.values())
    return {
        k: f"its update has norm {size:.3g}, the round's median is {usual:.3g}"
        for k, size in norms.items()
        if usual > 0 and size > times * usual
    }


def norm(upload: Any, down: Any) -> float:
    """The Euclidean norm of an update: of all floating-point tensors, less those of the download of the same name."""
    before = {f"{name}{path}": tensor for name, part in by_field(down).items() for path, tensor in leaves(part)}
    total = 0.0
    for name, part in by_field(upload).items():
        for path, tensor in leaves(part):
            if tensor.is_floating_point():
                was = before.get(f"{name}{path}")
                same = was is not None and was.shape == tensor.shape
                change = tensor.double() - was.double() if was is not None and same else tensor.double()
                total += float(change.square().sum())
    return math.sqrt(total)
