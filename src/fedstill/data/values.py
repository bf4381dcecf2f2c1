"""The values of a table's columns as numbers: dates as days, times in their order, categories as codes."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.data.columns import listed
from fedstill.data.separated import ADVICE, NUMBER, bad_number

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

TRUTHS = {way: word.capitalize() for word in ("true", "false") for way in (word, word.upper(), word.capitalize())}
"""Truth values as files have them, and the one way in which they are written as categories and classes."""

DATE = re.compile(r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?$")
"""What a date written as a text begins with."""


def is_date(kind: pa.DataType) -> bool:
    """Does a column of this type hold days, with or without a time of day?"""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_number(kind: pa.DataType) -> bool:
    """Does a column of this type hold numbers, or truth values?"""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


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


def numbers_of(where: str, name: str, column: pa.ChunkedArray, advice: str = ADVICE) -> Floats:
    """A column as float32, NaN where a value is missing; dates as days since 1970."""
    return singles(where, name, doubles_of(where, name, column, advice))


def doubles_of(where: str, name: str, column: pa.ChunkedArray, advice: str = ADVICE) -> Doubles:
    """A column as numbers before they are stored as float32."""
    column = dated(column)
    kind = column.type
    try:
        if is_date(kind):
            seconds = pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
            return np.asarray(pc.divide(pc.cast(seconds, pa.float64()), 86400.0).to_numpy(), np.float64)
        if pa.types.is_temporal(kind):
            return np.asarray(pc.cast(_ticks(column), pa.float64()).to_numpy(), np.float64)
        return np.asarray(pc.cast(column, pa.float64(), safe=not pa.types.is_integer(kind)).to_numpy(), np.float64)
    except pa.ArrowInvalid:
        raise _named_number(where, name, column, advice) from None


def singles(where: str, name: str, values: Doubles) -> Floats:
    """Numbers as float32; what is too large for it is named."""
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    if np.isinf(numbers).any():
        raise DataError(f"{where}: row {int(np.isinf(numbers).argmax()) + 1:,}, column {name!r}: too large a number")
    return numbers


def _ticks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates, times and durations as whole numbers of the unit in which they are stored."""
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = pc.cast(column, pa.int32())
    return pc.cast(column, pa.int64())


def _named_number(where: str, name: str, column: pa.ChunkedArray, advice: str) -> DataError:
    values = column.to_pylist()
    bad = [row for row, value in enumerate(values) if value is not None and not _is_number(value)]
    if not bad:
        return DataError(f"{where}: column {name!r} holds no numbers")
    others = len(values) - column.null_count - len(bad)
    return bad_number(where, name, bad[0], values[bad[0]], others, advice=advice)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def codes_of(where: str, name: str, column: pa.ChunkedArray, known: tuple[str, ...]) -> Floats:
    """Codes of a column of categories (NaN: missing); a category that is not known is refused."""
    texts = pc.cast(column, pa.string())
    different = [text for text in pc.unique(texts).to_pylist() if text is not None]
    places = places_among(different, known)
    strange = [text for text, place in zip(different, places, strict=True) if place is None]
    if strange:
        row = pc.index(pc.is_in(texts, pa.array(strange, pa.string())), True).as_py()
        raise DataError(
            f"{where}: row {row + 1:,}, column {name!r}: unknown category {texts[row].as_py()!r}; "
            f"known: {listed(known)}; an empty cell counts as none of them"
        )
    codes = pc.index_in(texts, pa.array(different, pa.string()))
    return np.asarray(pc.cast(pa.array(places, pa.float64()).take(codes), pa.float64()).to_numpy(), np.float32)


def places_among(texts: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """The place of each of these texts among the known ones, if need be of the one that is the same value.

    >>> places_among(["01", "1", "true", "1.50", "x"], ["01", "1", "True", "1.5"])
    [0, 1, 2, 3, None]
    """
    place = {name: number for number, name in enumerate(known)}
    counted = Counter(map(_value, known))
    by_value = {_value(name): number for name, number in place.items() if counted[_value(name)] == 1}
    return [place.get(text, by_value.get(_value(text))) for text in texts]


def _value(text: str) -> str | float:
    """What a text says, however it is written."""
    return float(text) if re.match(NUMBER, text) else TRUTHS.get(text, text)


def one_way(texts: Iterable[str]) -> tuple[str, ...]:
    """Names of categories or classes as every file has them: truth values are written in one way.

    >>> one_way(["FALSE", "TRUE", "true", "maybe"])
    ('False', 'True', 'maybe')
    """
    return tuple(dict.fromkeys(TRUTHS.get(text, text) for text in texts))


def rounded(name: str, values: NDArray[Any]) -> tuple[str, ...]:
    """A line where float32 is too coarse for a column or channel that lies far from 0; none where it is not.

    At 1.7 thousand million, numbers of float32 are 128 apart:

    >>> rounded("t", 1.7e9 + np.arange(100.0))
    ("column 't': numbers near 1.7e+09 are kept in steps of 128, which is much for a deviation of 28.9; subtract ...",)
    """
    there = values[np.isfinite(values)].astype(np.float64)
    if not len(there) or (there.astype(np.float32) == there).all():
        return ()
    top, spread = float(np.abs(there).max()), float(there.std())
    step = float(np.spacing(np.float32(top)))
    if not 0 < spread * COARSE < step:
        return ()
    return (
        f"column {name!r}: numbers near {top:.6g} are kept in steps of {step:.3g}, "
        f"which is much for a deviation of {spread:.3g}; subtract a constant from them",
    )


COARSE = 1e-3
"""Of a column's deviation: steps that are larger than this share lose what it holds."""


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
