"""From the columns of a table to a data set: rows, windows of series, or texts, with labels and sites.

What every column holds is inferred, noted and can be overridden; everything that is wrong is told in one line.
"""

import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError, unknown
from fedstill.core.kind import Kind
from fedstill.data.columns import listed
from fedstill.data.kinds import Series, Table
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset, Samples, Sites
from fedstill.data.separated import UNNAMED, bad_number
from fedstill.data.telling import telling
from fedstill.data.tokenize import tokens

MANY = 100
"""Texts with more different values than this are no categories."""
SEVERAL = 20
"""A column of texts with more different values than this, and more than half its rows, names its rows."""
MOST_MISSING = 0.95
"""A column with more missing values than this share is refused."""

IDENTIFIER = re.compile(r"(?:^|[_\s.-])(?i:id|uuid|guid)$|[a-z](?:Id|ID)$")
"""Names of columns that identify something: `id`, `patient_id`, `Patient ID`, `PassengerId`."""
DATE = re.compile(r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?$")
"""What a date written as a text begins with."""
LONGEST = 60
"""So many characters of a label are quoted in an error."""
HELD_OUT = 0.2
"""The share of overlapping windows that is kept as a test: the end of every stretch."""

ENDS = "windows overlap: the end of every stretch of one label, a fifth of the windows, is the test"

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Roles:
    """What each column is for, and what a user should know of how that was found."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    notes: tuple[str, ...]


def dataset(name: str, table: pa.Table, where: str, reading: Reading, least: int = 2) -> Dataset:
    """The data set of a table, read as `reading` says; its training rows must have at least `least` classes."""
    _check(table, where, reading)
    label = str(reading.label)
    numbers, class_names = _classes(where, label, table.column(label))
    is_test = _test_rows(where, table, reading)
    sites = None if reading.site is None else site_codes(where, reading.site, table.column(reading.site))
    x: NDArray[Any]
    kind: Kind
    if reading.text is not None:
        x, kind, notes = _texts(where, table, reading)
        notes += _telling(table, reading, numbers, class_names, is_test)
    elif reading.time is not None:
        roles = _roles(where, table, reading, windows=True)
        order, starts, is_test = _windows(where, table, reading, numbers, sites, is_test)
        x, kind = _series(where, table, roles.numeric, order, starts, reading, is_test)
        first = order[starts]
        ends = (ENDS,) if reading.split is None and is_test.any() else ()
        numbers, is_test = numbers[first], is_test[first]
        sites = None if sites is None else (sites[0], sites[1][first])
        notes = (*roles.notes, f"{len(starts):,} windows of {reading.window} rows from {len(order):,} rows", *ends)
    else:
        roles = _roles(where, table, reading)
        x, kind = _rows(where, table, roles, reading, is_test)
        notes = roles.notes
    made = _assembled(name, where, x, kind, numbers, class_names, sites, is_test, notes)
    made = replace(made, overlapping=ENDS in notes)
    present = np.unique(made.train.y.numpy())
    if len(present) < least:
        only, count = class_names[int(present[0])], f"{len(made.train):,} training {kind.plural}"
        only = only if len(only) <= LONGEST else f"{only[:LONGEST]}…"  # a quote without its end takes all that follows
        raise DataError(f"{where}: column {label!r}: all {count} have label {only!r}; two classes are needed")
    return made


def _assembled(
    name: str, where: str, x: NDArray[Any], kind: Kind, labels: Ints, class_names: tuple[str, ...],
    sites: tuple[tuple[str, ...], Ints] | None, is_test: NDArray[np.bool_], notes: tuple[str, ...],
) -> Dataset:  # fmt: skip
    every = Samples(torch.from_numpy(x), torch.from_numpy(labels), kind)
    train = every if not is_test.any() else every[~is_test]
    test = every[is_test] if is_test.any() else None
    if len(train) == 0:
        raise DataError(f"{where}: no rows to train on")
    places = None
    if sites is not None:
        places = Sites(sites[0], sites[1][~is_test], sites[1][is_test] if test is not None else None)
    return Dataset(name, train, test, len(class_names), class_names, where, places, notes)


def _check(table: pa.Table, where: str, reading: Reading) -> None:
    if reading.label is None:
        raise UsageError(
            f"{where}: say which column is the label (label = …); columns: {listed(table.column_names, 30)}"
        )
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows")
    if reading.label not in table.column_names and "," in reading.label:
        raise UsageError(f"label = {reading.label!r}: one column only; several labels a row are not supported")
    asked = {"label": reading.label, "site": reading.site, "time": reading.time, "text": reading.text}
    asked["split"] = reading.split
    many = {"ignore": reading.ignore, "numeric": reading.numeric, "categorical": reading.categorical}
    every = [(what, one) for what, one in asked.items() if one is not None]
    every += [(what, one) for what, names in many.items() for one in names]
    for what, column in every + [("categories", c) for c in reading.declared]:
        if column not in table.column_names:
            raise unknown(f"column of {where} ({what} =)", column, table.column_names)


def _classes(where: str, name: str, column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """Class numbers, and the classes' names: numbers in their order, texts in alphabetical order."""
    if pa.types.is_nested(column.type):
        raise UsageError(f"label = {name!r}: holds lists; several labels a row are not supported")
    if column.null_count:
        row = pc.index(pc.is_null(column, nan_is_null=True), True).as_py()
        few = f"no label ({column.null_count:,} rows have none); fill it in, or leave such rows out"
        raise DataError(f"{where}: row {row + 1:,}, column {name!r}: {few}")
    values = pc.unique(column).to_pylist()
    numeric = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    whole = not numeric or all(float(v).is_integer() for v in values)
    rare = len(values) > max(SEVERAL, len(column) // 2)
    if numeric and (not whole or rare or len(values) > max(MANY, len(column) // 10)):
        raise UsageError(
            f"label = {name!r}: {len(values):,} different numbers; classes are needed (regression is not supported)"
        )
    if not numeric and rare:
        raise UsageError(f"label = {name!r}: {len(values):,} different values in {len(column):,} rows are no classes")
    if (several := _several_labels(values)) is not None:
        raise UsageError(
            f"label = {name!r}: {several!r} is several labels in one; several labels a row are not supported"
        )
    ordered = sorted(values) if numeric else sorted(values, key=str)
    names = tuple(str(int(v)) if numeric else str(v) for v in ordered)
    codes = pc.index_in(column, pa.array(ordered, column.type)).to_numpy()
    return codes.astype(np.int64), names


def _several_labels(values: list[Any]) -> str | None:
    """A label that is made of others, such as `a|b` or `a, b` where there are `a` and `b`; None without."""
    names = {str(value) for value in values}
    for name in sorted(names):
        for sign in "|;,":
            pieces = {piece.strip() for piece in name.split(sign)}
            if len(pieces) > 1 and pieces <= names:
                return name
    return None


def _test_rows(where: str, table: pa.Table, reading: Reading) -> NDArray[np.bool_]:
    if reading.split is None:
        return np.zeros(table.num_rows, bool)
    column = table.column(reading.split)
    values = {str(v) for v in pc.unique(column).to_pylist()}
    if not values <= {"train", "test"}:
        odd = sorted(values - {"train", "test"})[0]
        raise DataError(f"{where}: column {reading.split!r}: {odd!r}; must be train or test")
    return np.asarray(pc.equal(pc.cast(column, pa.string()), "test").to_numpy(), bool)


def site_codes(where: str, name: str, column: pa.ChunkedArray) -> tuple[tuple[str, ...], Ints]:
    """The sites in a column, in order, and the place of each row's site among them."""
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise DataError(f"{where}: row {row + 1:,}, column {name!r}: no site ({column.null_count:,} rows have none)")
    ordered = sorted(pc.unique(column).to_pylist(), key=lambda v: (str(type(v)), v))
    codes = pc.index_in(column, pa.array(ordered, column.type)).to_numpy().astype(np.int64)
    return tuple(str(v) for v in ordered), codes


def _roles(where: str, table: pa.Table, reading: Reading, windows: bool = False) -> Roles:
    """Which columns hold numbers, which categories, which are left out: as asked, else by their types and values."""
    used = {reading.label, reading.site, reading.time, reading.split, *reading.ignore}
    numeric: list[str] = []
    categorical: list[str] = []
    left = list(reading.ignore)
    for name in table.column_names:
        if name in used:
            continue
        column = dated(table.column(name))
        sort = _sort(where, name, column, reading)
        if sort == "categorical" and windows:
            left.append(f"{name} (no numbers)")
        elif sort in ("numeric", "categorical"):
            _refuse_missing(where, name, column)
            (numeric if sort == "numeric" else categorical).append(name)
        else:
            left.append(f"{name} ({sort})")
    if not numeric and not categorical:
        texts = [line.partition(" (")[0] for line in left if line.endswith("different texts)")]
        hint = f"; to read texts, say which column (text = {texts[0]})" if texts else ""
        raise DataError(f"{where}: no column is left to learn from; left out: {listed(left)}{hint}")
    dates = [name for name in numeric if is_date(dated(table.column(name)).type)]
    notes = [f"numbers: {listed(numeric)}"] if numeric else []
    notes += [f"dates, as days since 1970: {listed(dates)}"] if dates else []
    notes += [f"categories: {listed(categorical)}"] if categorical else []
    notes += [f"left out: {listed(left)}"] if left else []
    return Roles(tuple(numeric), tuple(categorical), tuple(notes))


def _sort(where: str, name: str, column: pa.ChunkedArray, reading: Reading) -> str:
    """`numeric`, `categorical`, or why the column is left out."""
    if name in reading.categorical or name in reading.declared:
        return "categorical"
    if name in reading.numeric:
        return "numeric"
    if name.startswith(f"{UNNAMED} "):
        return "no name"
    kind = column.type
    if _names_rows(name, column):
        return "identifies rows"
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if number or pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return "numeric"
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return f"holds {kind}"
    different = pc.count_distinct(column).as_py()
    few = different <= MANY and different <= max(SEVERAL, len(column) // 2)
    return "categorical" if few else f"{different:,} different texts"


def _names_rows(name: str, column: pa.ChunkedArray) -> bool:
    """Is this an identifier by its name, and another in every row? Numbers with a decimal point are none."""
    if IDENTIFIER.search(name) is None or column.null_count or pa.types.is_nested(column.type):
        return False
    return not pa.types.is_floating(column.type) and pc.count_distinct(column).as_py() == len(column)


def _refuse_missing(where: str, name: str, column: pa.ChunkedArray) -> None:
    share = column.null_count / len(column)
    if share > MOST_MISSING:
        raise DataError(
            f"{where}: column {name!r}: {math.floor(100 * share)}% of {len(column):,} values are missing; "
            f"leave it out (ignore = {name})"
        )


def is_date(kind: pa.DataType) -> bool:
    """Does a column of this type hold days, with or without a time of day?"""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def dated(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts as dates where all of them are (`2024-01-31`, `2024-01-31 08:15`); others as they are.

    Files of separated values come with dates; frames and Parquet files often have them as texts.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    first = next((text for text in column if text.is_valid), None)
    if first is None or DATE.match(first.as_py()) is None:
        return column
    for zone in (None, "UTC"):
        try:
            return pc.cast(column, pa.timestamp("us", zone))
        except pa.ArrowInvalid:
            continue
    return column


def numbers_of(where: str, name: str, column: pa.ChunkedArray) -> Floats:
    """A column as float32, NaN where a value is missing; dates as days since 1970."""
    column = dated(column)
    kind = column.type
    try:
        if is_date(kind):
            seconds = pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
            return np.asarray(pc.divide(pc.cast(seconds, pa.float64()), 86400.0).to_numpy(), np.float32)
        if pa.types.is_temporal(kind):
            return np.asarray(pc.cast(_ticks(column), pa.float64()).to_numpy(), np.float32)
        values = pc.cast(column, pa.float64(), safe=not pa.types.is_integer(kind)).to_numpy()
    except pa.ArrowInvalid:
        raise _named_number(where, name, column) from None
    with np.errstate(over="ignore"):
        numbers = np.asarray(values, np.float32)
    if np.isinf(numbers).any():
        raise DataError(f"{where}: row {int(np.isinf(numbers).argmax()) + 1:,}, column {name!r}: too large a number")
    return numbers


def _ticks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates, times and durations as whole numbers of the unit in which they are stored."""
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = pc.cast(column, pa.int32())
    return pc.cast(column, pa.int64())


def _named_number(where: str, name: str, column: pa.ChunkedArray) -> DataError:
    values = column.to_pylist()
    bad = [row for row, value in enumerate(values) if value is not None and not _is_number(value)]
    if not bad:
        return DataError(f"{where}: column {name!r} holds no numbers")
    return bad_number(where, name, bad[0], values[bad[0]], len(values) - column.null_count - len(bad))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _rows(
    where: str, table: pa.Table, roles: Roles, reading: Reading, is_test: NDArray[np.bool_]
) -> tuple[Floats, Table]:
    """Rows as `Table` stores them; normalised by, and with the categories of, the training rows."""
    count = len(roles.numeric)
    x = np.empty((table.num_rows, count + len(roles.categorical)), np.float32)
    for place, name in enumerate(roles.numeric):
        x[:, place] = numbers_of(where, name, table.column(name))
    categories = []
    for place, name in enumerate(roles.categorical, count):
        known = _categories(name, table.column(name), reading, is_test)
        x[:, place] = codes_of(where, name, table.column(name), known)
        categories.append(known)
    train = x if not is_test.any() else x[~is_test]
    return x, Table.of(train, roles.numeric, roles.categorical, tuple(categories))


def _categories(name: str, column: pa.ChunkedArray, reading: Reading, is_test: NDArray[np.bool_]) -> tuple[str, ...]:
    """The categories of a column: those declared, or those of the training rows."""
    declared = reading.declared.get(name)
    if declared is not None:
        return declared
    texts = pc.cast(column, pa.string())
    seen = texts if not is_test.any() else texts.filter(pa.array(~is_test))
    return tuple(sorted(v for v in pc.unique(seen).to_pylist() if v is not None))


def codes_of(where: str, name: str, column: pa.ChunkedArray, known: tuple[str, ...]) -> Floats:
    """Codes of a column of categories (NaN: missing); a category that is not known is refused."""
    texts = pc.cast(column, pa.string())
    codes = pc.index_in(texts, pa.array(list(known), pa.string()))
    strange = pc.and_(pc.is_null(codes), pc.is_valid(texts))
    if pc.any(strange).as_py():
        row = pc.index(strange, True).as_py()
        raise DataError(
            f"{where}: row {row + 1:,}, column {name!r}: unknown category {texts[row].as_py()!r}; "
            f"known: {listed(known)}"
        )
    return np.asarray(pc.cast(codes, pa.float64()).to_numpy(), np.float32)


def _windows(
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


def times_of(where: str, name: str, column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of time as numbers that can be sorted."""
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise DataError(f"{where}: row {row + 1:,}, column {name!r}: no time")
    column = dated(column)
    column = _ticks(column) if pa.types.is_temporal(column.type) else column
    try:
        return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), np.float64)
    except pa.ArrowInvalid:
        raise DataError(f"{where}: column {name!r}: neither numbers nor dates; time is needed") from None


def _series(
    where: str, table: pa.Table, names: tuple[str, ...], order: Ints, starts: Ints, reading: Reading,
    is_test: NDArray[np.bool_],
) -> tuple[Floats, Series]:  # fmt: skip
    """Windows as N×C×T; a missing value becomes its channel's mean over the training rows."""
    if not names:
        raise DataError(f"{where}: no column of numbers is left to make series of")
    window = int(reading.window or 1)
    x = np.empty((len(starts), len(names), window), np.float32)
    rows = starts[:, None] + np.arange(window)
    for channel, name in enumerate(names):
        values = numbers_of(where, name, table.column(name))
        train = values[~is_test]
        gaps = np.isnan(values)
        if gaps.any():
            mean = float(np.nanmean(train)) if not np.isnan(train).all() else 0.0
            values = np.where(gaps, np.float32(mean), values)
        x[:, channel] = values[order][rows]
    train_windows = ~is_test[order[starts]]
    return x, Series.of(x[train_windows] if train_windows.any() else x, names)


def _telling(
    table: pa.Table, reading: Reading, labels: Ints, class_names: tuple[str, ...], is_test: NDArray[np.bool_]
) -> tuple[str, ...]:
    """A line with the words that tell the (first few) classes apart, in the training texts."""
    texts = [str(text or "") for text in table.column(str(reading.text)).filter(pa.array(~is_test)).to_pylist()]
    words = telling(texts, labels[~is_test].tolist(), len(class_names))
    shown = [f"{name}: {', '.join(some)}" for name, some in list(zip(class_names, words, strict=True))[:6]]
    return (f"telling words of {'; '.join(shown)}",)


def _texts(where: str, table: pa.Table, reading: Reading) -> tuple[NDArray[np.int32], Kind, tuple[str, ...]]:
    column = table.column(str(reading.text))
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = pc.cast(column, pa.string())
    x, kind = tokens([text or "" for text in column.to_pylist()], reading)
    used = {reading.label, reading.site, reading.text, reading.split}
    left = [name for name in table.column_names if name not in used]
    notes = [f"texts: {reading.text}, the first {reading.length} tokens of each"]
    return x, kind, (*notes, *([f"left out: {listed(left)}"] if left else []))
