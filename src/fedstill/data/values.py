"""The values of a table's columns as numbers: dates as days, times in their order, categories as codes."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.data.columns import listed
from fedstill.data.separated import bad_number

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

DATE = re.compile(r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?$")
"""What a date written as a text begins with."""


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
