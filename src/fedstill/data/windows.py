"""Windows of series from a table's rows: which rows make one, which are the test, and the numbers in them."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.data.kinds import Series
from fedstill.data.reading import Reading
from fedstill.data.values import Floats, Ints, doubles_of, rounded, singles, times_of

HELD_OUT = 0.2
"""The share of overlapping windows that is kept as a test: the end of every stretch."""

ENDS = "windows overlap: the end of every stretch of one label, a fifth of the windows, is the test"


def windows(
    where: str, table: pa.Table, reading: Reading, labels: Ints,
    sites: tuple[tuple[str, ...], Ints] | None, is_test: NDArray[np.bool_],
) -> tuple[Ints, Ints, NDArray[np.bool_]]:  # fmt: skip
    """The order of rows (by site, then time), the places in it where windows start, and the test rows.

    A window lies within one stretch of rows of the same site, label and part, so that it has one of each. A test drawn
    at random among windows that overlap would share rows with the training windows beside it: where nobody says which
    rows are the test, it is the end of every stretch.
    """
    window, step = int(reading.window or 1), int(reading.step or reading.window or 1)
    time = times_of(where, str(reading.time), table.column(str(reading.time)))
    owner = np.zeros(len(labels), np.int64) if sites is None else sites[1]
    order = np.lexsort((np.arange(len(labels)), time, is_test, owner))
    changes = np.zeros(len(order), bool)
    for values in (owner, labels, is_test):
        changes[1:] |= values[order][1:] != values[order][:-1]
    edges = np.flatnonzero(np.concatenate([[True], changes[1:], [True]])).tolist()
    longest = int(np.diff(edges).max())
    if step < window and reading.split is None:
        cuts = _ends(edges, owner[order], window, step)
        is_test = is_test.copy()
        for cut, end in cuts.items():
            is_test[order[cut:end]] = True
        edges = sorted({*edges, *cuts})
    starts = [np.arange(a, b - window + 1, step) for a, b in pairwise(edges)]
    places = np.concatenate(starts).astype(np.int64)
    if not len(places):
        raise DataError(f"{where}: no {window} rows in a row have one site and label; the longest run has {longest}")
    return order, places, is_test


def interleaved(where: str, table: pa.Table, reading: Reading) -> tuple[str, ...]:
    """A line where several rows have one time, and nobody says whose they are: windows would mix them."""
    if reading.site is not None:
        return ()
    time = times_of(where, str(reading.time), table.column(str(reading.time)))
    again = len(time) - len(np.unique(time))
    if not again:
        return ()
    return (
        f"column {reading.time!r}: {again:,} of {len(time):,} times repeat, and windows mix rows of one time; "
        "where they are of several people or places, say whose they are (--site)",
    )


def _ends(edges: list[int], owner: Ints, window: int, step: int) -> dict[int, int]:
    """Where the test begins in every stretch that has one, and where the stretch ends: a fifth of each owner's windows.

    Every owner keeps a window to train on: one with a single short stretch has no test.

        >>> _ends([0, 11, 15], np.zeros(15), 4, 2)          # windows at 0, 2, 4, 6 and at 11: the last of the first
        {6: 11}
    """
    cuts: dict[int, int] = {}
    counted: dict[int, tuple[int, int, int]] = {}
    for start, end in pairwise(edges):
        seen, held, left = counted.get(int(owner[start]), (0, 0, 0))
        count = max(0, (end - start - window) // step + 1)
        wanted = round(HELD_OUT * (seen + count)) - held
        cut = start + (count - wanted) * step
        rest = max(0, (cut - start - window) // step + 1)
        if wanted > 0 and left + rest:
            cuts[cut] = end
        else:
            wanted, rest = 0, count
        counted[int(owner[start])] = (seen + count, held + wanted, left + rest)
    return cuts


def series(
    where: str, table: pa.Table, names: tuple[str, ...], order: Ints, starts: Ints, reading: Reading,
    is_test: NDArray[np.bool_],
) -> tuple[Floats, Series, tuple[str, ...]]:  # fmt: skip
    """Windows as N×C×T, and what is in doubt; a missing value becomes its channel's mean over the training rows."""
    if not names:
        raise DataError(f"{where}: no column of numbers is left to make series of")
    window = int(reading.window or 1)
    x = np.empty((len(starts), len(names), window), np.float32)
    rows = starts[:, None] + np.arange(window)
    doubts: tuple[str, ...] = ()
    for channel, name in enumerate(names):
        numbers = doubles_of(where, name, table.column(name))
        values = singles(where, name, numbers)
        doubts += rounded(name, numbers)
        train = values[~is_test]
        gaps = np.isnan(values)
        if gaps.any():
            mean = float(np.nanmean(train)) if not np.isnan(train).all() else 0.0
            values = np.where(gaps, np.float32(mean), values)
        x[:, channel] = values[order][rows]
    train_windows = ~is_test[order[starts]]
    return x, Series.of(x[train_windows] if train_windows.any() else x, names), doubts
