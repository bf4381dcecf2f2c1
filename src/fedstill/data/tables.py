"""From the columns of a table to a data set: rows, windows of series, or texts, with labels and sites.

What every column holds is inferred, noted and can be overridden; everything that is wrong is told in one line.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError, unknown
from fedstill.core.kind import Kind
from fedstill.data.columns import listed
from fedstill.data.kinds import Table
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset, Samples, Sites
from fedstill.data.separated import UNNAMED, doubts_of, filled
from fedstill.data.telling import telling
from fedstill.data.tokenize import tokens
from fedstill.data.values import (
    Floats,
    Ints,
    codes_of,
    dated,
    doubles_of,
    is_date,
    is_number,
    one_way,
    places_among,
    rounded,
    singles,
)
from fedstill.data.windows import ENDS, interleaved, series, windows

MANY = 100
"""Texts with more different values than this are no categories."""
SEVERAL = 20
"""A column of texts with more different values than this, and more than half its rows, names its rows."""
MOST_MISSING = 0.95
"""A column with more missing values than this share is refused."""

IDENTIFIER = re.compile(r"(?:^|[_\s.-])(?i:id|uuid|guid)$|[a-z](?:Id|ID)$")
"""Names of columns that identify something: `id`, `patient_id`, `Patient ID`, `PassengerId`."""
LIKE_NUMBER = r"^\s*[+-]?[\d.,']*\d[\d.,']*([eE][+-]?\d+)?\s*%?\s*$"
"""A number in whatever way."""
LONGEST = 60
"""So many characters of a label are quoted in an error."""


@dataclass(frozen=True)
class Roles:
    """What each column is for, and what a user should know of how that was found."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()


def dataset(name: str, table: pa.Table, where: str, reading: Reading, least: int = 2) -> Dataset:
    """The data set of a table, read as `reading` says; its training rows must have at least `least` classes."""
    _check(table, where, reading)
    table = _without_blanks(table, str(reading.label))
    label = str(reading.label)
    numbers, class_names = _classes(where, label, table.column(label))
    is_test = _test_rows(where, table, reading)
    sites = None if reading.site is None else site_codes(where, reading.site, table.column(reading.site))
    x: NDArray[Any]
    kind: Kind
    doubts = doubts_of(table)
    if reading.text is not None:
        x, kind, notes = _texts(where, table, reading)
        notes += _telling(table, reading, numbers, class_names, is_test)
    elif reading.time is not None:
        roles = _roles(where, table, reading, windows=True)
        order, starts, is_test = windows(where, table, reading, numbers, sites, is_test)
        x, kind, coarse = series(where, table, roles.numeric, order, starts, reading, is_test)
        doubts += (*roles.doubts, *coarse, *interleaved(where, table, reading))
        first = order[starts]
        ends = (ENDS,) if reading.split is None and is_test.any() else ()
        numbers, is_test = numbers[first], is_test[first]
        sites = None if sites is None else (sites[0], sites[1][first])
        notes = (*roles.notes, f"{len(starts):,} windows of {reading.window} rows from {len(order):,} rows", *ends)
    else:
        roles = _roles(where, table, reading)
        x, kind, coarse = _rows(where, table, roles, reading, is_test)
        notes = roles.notes
        doubts += (*roles.doubts, *coarse)
    made = _assembled(name, where, x, kind, numbers, class_names, sites, is_test, notes)
    made = replace(made, doubts=doubts, overlapping=ENDS in notes)
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


def _without_blanks(table: pa.Table, label: str) -> pa.Table:
    """The table without rows in which nothing stands, as spreadsheets have them between and after others."""
    if not table.column(label).null_count or (there := filled(table)).all():
        return table
    return table.filter(pa.array(there))


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
    written = [str(int(v)) if numeric else str(v) for v in ordered]
    names = one_way(written)
    codes = pc.index_in(column, pa.array(ordered, column.type)).to_numpy()
    return np.array(places_among(written, names), np.int64)[codes], names


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
    doubts: list[str] = []
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
            doubts += _mostly_numbers(name, column) if sort.endswith(" different texts") else []
    if not numeric and not categorical:
        texts = [line.partition(" (")[0] for line in left if line.endswith("different texts)")]
        hint = f"; to read texts, say which column (text = {texts[0]})" if texts else ""
        raise DataError(f"{where}: no column is left to learn from; left out: {listed(left)}{hint}")
    dates = [name for name in numeric if is_date(dated(table.column(name)).type)]
    notes = [f"numbers: {listed(numeric)}"] if numeric else []
    notes += [f"dates, as days since 1970: {listed(dates)}"] if dates else []
    notes += [f"categories: {listed(categorical)}"] if categorical else []
    notes += [f"left out: {listed(left)}"] if left else []
    return Roles(tuple(numeric), tuple(categorical), tuple(notes), tuple(doubts))


def _mostly_numbers(name: str, column: pa.ChunkedArray) -> list[str]:
    """A line on a column of texts that is left out, though half of them or more are numbers, however written."""
    looks = pc.fill_null(pc.match_substring_regex(column, LIKE_NUMBER), True)
    count, there = pc.sum(looks).as_py() - column.null_count, len(column) - column.null_count
    if 2 * count < there:
        return []
    text = column[0 if count == there else pc.index(looks, False).as_py()].as_py()
    other = f"written in another way, such as {text!r}" if count == there else f"and {text!r} is not"
    return [f"column {name!r} is left out: {count:,} of its {there:,} values are numbers, {other}; mend them"]


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
    if is_number(kind) or pa.types.is_temporal(kind):
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


def _rows(
    where: str, table: pa.Table, roles: Roles, reading: Reading, is_test: NDArray[np.bool_]
) -> tuple[Floats, Table, tuple[str, ...]]:
    """Rows as `Table` stores them, normalised by, and with the categories of, training rows; and what is in doubt."""
    count = len(roles.numeric)
    x = np.empty((table.num_rows, count + len(roles.categorical)), np.float32)
    doubts: tuple[str, ...] = ()
    for place, name in enumerate(roles.numeric):
        values = doubles_of(where, name, table.column(name))
        x[:, place] = singles(where, name, values)
        doubts += rounded(name, values)
    categories = []
    for place, name in enumerate(roles.categorical, count):
        known = _categories(name, table.column(name), reading, is_test)
        x[:, place] = codes_of(where, name, table.column(name), known)
        categories.append(known)
    train = x if not is_test.any() else x[~is_test]
    dates = tuple(name for name in roles.numeric if is_date(dated(table.column(name)).type))
    return x, Table.of(train, roles.numeric, roles.categorical, tuple(categories), dates), doubts


def _categories(name: str, column: pa.ChunkedArray, reading: Reading, is_test: NDArray[np.bool_]) -> tuple[str, ...]:
    """The categories of a column: those declared, or those of the training rows."""
    declared = reading.declared.get(name)
    if declared is not None:
        return declared
    texts = pc.cast(column, pa.string())
    seen = texts if not is_test.any() else texts.filter(pa.array(~is_test))
    return one_way(sorted((v for v in pc.unique(seen).to_pylist() if v is not None), key=_unpadded))


def _unpadded(text: str) -> tuple[str, str]:
    """What categories are sorted by: codes such as `01` stand where `1` would."""
    return (text.lstrip("0") or "0") if text.isdecimal() else text, text


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
