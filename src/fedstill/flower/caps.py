"""How much one site may weigh: its share of all samples, and the size of its update against the others'.

A site says itself how many samples it has, and any finite weights pass the form: without a cap one site could make the
model its own. Both caps are settings of the experiment (`largest_share`, `largest_update`); 1 and 0 turn them off.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from fedstill.core.record import TOO_LONG, Carries, carried, leaves, replaced
from fedstill.core.value import by_field
from fedstill.data.summary import Summary
from fedstill.flower.messages import DataSummary

FEWEST = 3
"""With fewer sites there is no majority to measure one against."""
FAR = 20.0
"""So many deviations a site's mean may be from the median of all, so many times as many classes it may name."""


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


def weighed(party: Summary, share: float) -> Summary:
    """A party's numbers with this share of its samples: whose claim is held down moves the common mean no further."""
    if share == 1:
        return party
    return replace(party, size=round(party.size * share), counts=tuple(round(count * share) for count in party.counts))


def overcounted(upload: Any, samples: int) -> str | None:
    """Why label counts are not believed: they are of more samples than the site enrolled with."""
    counts = carried(upload, Carries.LABEL_COUNTS)
    told = 0.0 if counts is None else float(counts.double().sum())
    return f"label counts of {told:.3g} samples, enrolled were {samples}" if told > samples else None


def counted_as(upload: Any, share: float) -> Any:
    """An upload whose label counts weigh this share: whose claim is held down has no more say in a class either."""
    counts = carried(upload, Carries.LABEL_COUNTS)
    if counts is None or share == 1:
        return upload
    return replaced(upload, (counts.double() * share).ceil().to(counts.dtype), Carries.LABEL_COUNTS)


def far_ones(sites: Mapping[str, DataSummary]) -> dict[str, str]:
    """The sites whose numbers are so far from the others' that everybody's samples would be scaled to nothing.

    All parties are normalised by one mean and deviation, padded by one lowest value and told apart by one list of
    classes, which each site has a say in. `sites` have samples of one form.
    """
    if len(sites) < FEWEST:
        return {}
    classes = median(map(_names, sites.values()))
    columns = [_column(sites.values(), number) for number in range(len(next(iter(sites.values())).measured_mean))]
    widest = max((usual for _, usual in columns), default=0.0)
    lowest = median(party.lowest for party in sites.values())
    faults = {}
    for site, party in sites.items():
        for (middle, usual), mean, std in zip(columns, party.measured_mean, party.measured_std, strict=True):
            if usual > 0 and (abs(mean - middle) > FAR * usual or std > FAR * usual):
                faults[site] = f"its samples have mean {mean:.3g} ± {std:.3g}, the usual is {middle:.3g} ± {usual:.3g}"
        if widest > 0 and party.lowest < lowest - FAR * widest:
            faults[site] = f"its lowest value is {party.lowest:.3g}, the usual is {lowest:.3g}"
        if _names(party) > FAR * classes:
            faults[site] = f"it names {_names(party):,} classes and categories, the usual is {classes:.0f}"
    return faults


def _column(parties: Collection[DataSummary], number: int) -> tuple[float, float]:
    """Of a channel or column: the median of the parties' means, and how far samples usually are from it."""
    middle = median(party.measured_mean[number] for party in parties)
    spread = [math.hypot(party.measured_std[number], party.measured_mean[number] - middle) for party in parties]
    return middle, median(spread)


def _names(party: DataSummary) -> int:
    """Outputs and inputs that a model of everybody's would need for this party's classes and categories."""
    highest = [int(name) + 1 for name in party.class_names if name.isdecimal()]
    categories = party.kind.get("categories")
    known = [len(names) for names in categories if isinstance(names, tuple)] if isinstance(categories, tuple) else []
    return max([len(party.class_names), *highest]) + sum(known)


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
        k: f"{TOO_LONG}: norm {size:.3g}, the round's median {usual:.3g}"
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
