"""What must be known of each party's own data before they train together: kind, size, classes, normalisation.

Nothing else about the data leaves a party before the first round. `disclosed` says it in words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.core.kind import Kind, kind_of, sides
from fedstill.data.kinds import Image, Plain, Series, Table
from fedstill.data.kinds.image import measure
from fedstill.data.samples import Samples

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A party's training samples in a few numbers."""

    size: int
    kind: Mapping[str, Any]
    """With the normalisation its data came with, as `Kind.plain` says it."""
    dtype: str
    measured_mean: tuple[float, ...]
    measured_std: tuple[float, ...]
    """Those of its own samples, for every channel or column of numbers; 0 where it is constant."""
    counts: tuple[int, ...]
    """How many samples have a value there (tables: those that are not missing)."""
    lowest: float
    """The lowest value: black, for images that are brought to the model's size."""
    class_names: tuple[str, ...]


def summary(samples: Samples, class_names: tuple[str, ...]) -> Summary:
    """The summary of a party's samples."""
    x, kind = samples.x.numpy(), samples.kind
    mean, std = _measured(x, kind)
    flat = _constant(x, kind)
    counts = [len(x)] * len(mean)
    if isinstance(kind, Table):
        counts = (~np.isnan(x[:, : len(kind.numeric)])).sum(0).tolist()
    lowest = float(x.min()) if isinstance(kind, Image) else 0.0
    told = replace(kind, dates=None) if isinstance(kind, Table) else kind  # a form that older parties know too
    return Summary(
        len(samples), told.plain(), str(samples.x.dtype).removeprefix("torch."), mean,
        tuple(0.0 if still else s for still, s in zip(flat, std, strict=True)), tuple(counts), lowest, class_names,
    )  # fmt: skip


def _measured(x: NDArray[Any], kind: Kind) -> tuple[tuple[float, ...], tuple[float, ...]]:
    match kind:
        case Image() | Series():
            return measure(x)
        case Table():
            measured = Table.of(x, kind.numeric)
            return measured.mean, measured.std
        case Plain():
            own = Plain.of(x)
            return (own.mean,), (own.std,)
    return (), ()


def _constant(x: NDArray[Any], kind: Kind) -> list[bool]:
    """Which channels or columns never change: measuring gives these deviation 1."""
    match kind:
        case Image() | Series():
            rest = (0, *range(2, x.ndim))
            return [bool(same) for same in x.min(axis=rest) == x.max(axis=rest)]
        case Table():
            numbers = x[:, : len(kind.numeric)]
            low = np.where(np.isnan(numbers), np.inf, numbers).min(0)
            high = np.where(np.isnan(numbers), -np.inf, numbers).max(0)
            return [bool(same) for same in low >= high]
        case Plain():
            return [bool(x.min() == x.max())]
    return []


MOST_CLASSES = 10_000
"""So many classes a summary that came from elsewhere may name."""


def unsound(claimed: Summary) -> str | None:
    """What cannot be true of a summary that came from elsewhere (None: nothing)."""
    kind = kind_of(claimed.kind)
    numbers = [*claimed.measured_mean, *claimed.measured_std, claimed.lowest]
    if not all(math.isfinite(number) for number in numbers):
        return "a number that is not finite"
    if len(claimed.class_names) > MOST_CLASSES:
        return f"{len(claimed.class_names):,} classes; at most {MOST_CLASSES:,} are believed"
    wanted = len(_normalised(kind))
    if not len(claimed.measured_mean) == len(claimed.measured_std) == len(claimed.counts) == wanted:
        return f"must have {wanted} means, deviations and counts"
    if any(not 0 <= count <= claimed.size for count in claimed.counts) or any(s < 0 for s in claimed.measured_std):
        return "counts must be from 0 to the size, deviations ≥ 0"
    whole = isinstance(kind, Image) and claimed.dtype == "uint8"
    if whole and not (0 <= claimed.lowest <= 255 and all(0 <= n <= 1 for n in numbers[:-1])):
        return "a mean, deviation or lowest value that no byte has"
    wrong = kind.fault(kind.blank(0))
    return wrong or (None if claimed.dtype in ("uint8", "float32", "int32") else f"dtype {claimed.dtype}")


def _normalised(kind: Kind) -> Sequence[float]:
    """The means by which a kind normalises: one a channel, or a column of numbers."""
    match kind:
        case Image() | Series() | Table():
            return kind.mean
        case Plain():
            return (kind.mean,)
    return ()


def pooled(parties: Sequence[Summary]) -> Kind:
    """The kind of all parties' data: what they share already, else means and deviations over all their samples."""
    kinds = [kind_of(party.kind) for party in parties]
    first = kinds[0]
    if all(kind == first for kind in kinds):
        return first
    if isinstance(first, Table):
        return _pooled_table(parties, [kind for kind in kinds if isinstance(kind, Table)])
    counts = np.array([[party.size] * len(party.measured_mean) for party in parties], float)
    measured = [[party.measured_mean for party in parties], [party.measured_std for party in parties]]
    mean, std = _pooled(counts, *(np.array(numbers, float) for numbers in measured))
    match first:
        case Image() | Series():
            return replace(first, mean=tuple(map(float, mean)), std=_deviations(std))
        case Plain():
            return replace(first, mean=float(mean[0]), std=_deviations(std)[0])
    raise DataError(f"{kinds[0].words()} and {next(k for k in kinds if k != first).words()} cannot be joined")


def _pooled(counts: Floats, means: Floats, stds: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation over all samples, from those of each party (parties × columns)."""
    share = counts / np.maximum(counts.sum(0), 1)
    mean = (share * means).sum(axis=0)
    return mean, np.sqrt((share * (stds**2 + (means - mean) ** 2)).sum(axis=0))


def _deviations(std: Floats) -> tuple[float, ...]:
    return tuple(float(s) if s > 0 else 1.0 for s in std)


def _pooled_table(parties: Sequence[Summary], kinds: Sequence[Table]) -> Table:
    """Columns as the first party orders them; every category that anybody has; missing where anything is."""
    first = kinds[0]
    order = [[kind.numeric.index(name) for name in first.numeric] for kind in kinds]

    def aligned(statistics: Sequence[Sequence[float]]) -> Floats:
        """Parties × columns, in the first party's order."""
        return np.array([[own[i] for i in places] for own, places in zip(statistics, order, strict=True)], float)

    means, stds = aligned([p.measured_mean for p in parties]), aligned([p.measured_std for p in parties])
    counts = aligned([p.counts for p in parties])
    mean, std = _pooled(counts, means, stds)
    missing = tuple(name for name in first.numeric if any(name in kind.missing for kind in kinds))
    categories = tuple(
        tuple(sorted({c for kind in kinds for c in kind.categories[kind.categorical.index(name)]}))
        for name in first.categorical
    )
    shared = replace(first, mean=tuple(map(float, mean)), std=_deviations(std))
    return replace(shared, missing=missing, categories=categories)


def recast(samples: Samples, kind: Kind) -> Samples:
    """The same samples as the kind that all parties share stores them."""
    own = samples.kind
    if not (isinstance(own, Table) and isinstance(kind, Table)):
        return replace(samples, kind=kind)
    order = [own.columns.index(name) for name in kind.columns]
    x = samples.x[:, order].clone()
    for place, (name, known) in enumerate(zip(kind.categorical, kind.categories, strict=True), len(kind.numeric)):
        before = own.categories[own.categorical.index(name)]
        number = torch.tensor([float(known.index(category)) for category in before] or [0.0])
        there = ~x[:, place].isnan()
        x[there, place] = number[x[there, place].long()]
    return replace(samples, x=x, kind=kind)


def common_classes(parties: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """One list of classes for parties that know different ones: all names, sorted as numbers where they are such.

    >>> common_classes([("401", "1428"), ("401", "5")]), common_classes([("cat", "dog"), ("ant", "dog")])
    (('5', '401', '1428'), ('ant', 'cat', 'dog'))

    A name such as 00 is not how a number is written, and so a text. A party whose classes are known by their numbers
    alone names all up to its highest.
    """
    names = {name for party in parties for name in party}
    if all(name.isdecimal() and str(int(name)) == name for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def agreed(parties: Sequence[Summary], titles: Sequence[str]) -> None:
    """Refuse parties whose data differ in form, naming the first that does and how."""
    first = kind_of(parties[0].kind)
    for party, title in zip(parties, titles, strict=True):
        wrong = _difference(kind_of(party.kind), party.dtype, first, parties[0].dtype, titles[0])
        if wrong is not None:
            raise DataError(f"{title}: {wrong}")


def _difference(kind: Kind, dtype: str, first: Kind, first_dtype: str, title: str) -> str | None:
    if isinstance(kind, Table) and isinstance(first, Table):
        for columns, others, what in (
            (kind.numeric, first.numeric, "numbers"),
            (kind.categorical, first.categorical, "categories"),
        ):
            for name in columns:
                if name not in first.columns:
                    return f"has a column {name!r}, {title} has none; they must agree"
                if name not in others:
                    return f"column {name!r} holds {what}, not so at {title}; say which it is"
        lacking = [name for name in first.columns if name not in kind.columns]
        return f"has no column {lacking[0]!r}, {title} has one; they must agree" if lacking else None
    if type(kind) is not type(first) or (kind.shape, dtype) != (first.shape, first_dtype):
        here, there = f"{dtype} {sides(kind.shape)}", f"{first_dtype} {sides(first.shape)}"
        return f"{kind.plural} are {here}, those of {title} {there}; they must agree"
    if kind.imagined_shape != first.imagined_shape or (not kind_statistics(kind) and kind != first):
        return f"has {kind.words()}, {title} {first.words()}; they must agree"
    return None


def kind_statistics(kind: Kind) -> bool:
    """Is the kind normalised by means and deviations?"""
    return isinstance(kind, Image | Series | Table | Plain)


def disclosed(party: Summary) -> list[str]:
    """Line by line, what a summary tells of a party's data: it is all that leaves before the first round."""
    kind = kind_of(party.kind)
    lines = [f"kind: {kind.words()}", f"samples: {party.size}", f"classes: {', '.join(party.class_names)}"]
    if isinstance(kind, Table):
        columns = zip(kind.numeric, party.measured_mean, party.measured_std, party.counts, strict=True)
        lines += [f"{n}: mean {m:.6g}, deviation {s:.6g}, {c} values" for n, m, s, c in columns]
        lines += [f"{n}: {', '.join(c)}" for n, c in zip(kind.categorical, kind.categories, strict=True)]
    elif kind_statistics(kind):
        lines.append(f"mean {party.measured_mean}, deviation {party.measured_std}, by channel")
    return lines
