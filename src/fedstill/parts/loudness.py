"""Who shouts is heard less: steps far longer than the others' are shortened, the more the longer they are.

A forged step must be long to outweigh many honest ones. Clipping leaves it as long as the longest honest step; here its
influence falls again: a step of length ℓ beyond the bound b becomes one of length b³/ℓ². Lengths are compared with
every client's last step, not only with those of the round, of which half may be forged.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from fedstill.core.method import Reply
from fedstill.core.record import State
from fedstill.parts.gather import weights_in, with_weights
from fedstill.parts.robust import clipped, inner


def hushed(
    replies: Sequence[Reply[Any]], start: State, before: Mapping[int, float], loudest: float
) -> tuple[dict[int, float], list[Reply[Any]]]:
    """The length of every client's last step from `start`, and the replies, those too loud shortened.

    `before`: lengths known so far, by client; a step longer than `loudest` times the median of all is too loud. Who
    stood still says nothing of how long steps are: half of the clients could otherwise silence the rest.
    """
    steps = inner(replies, start).diagonal().clamp_min(0).sqrt().tolist()
    lengths = {**before, **{r.client: step for r, step in zip(replies, steps, strict=True)}}
    moved = [length for length in lengths.values() if length]
    bound = loudest * median_low(moved) if moved else 0.0
    heard = [
        with_weights(r, clipped(weights_in(r), start, (bound / step) ** 3)) if step > bound else r
        for r, step in zip(replies, steps, strict=True)
    ]
    return lengths, heard
