"""Rows for a model that is there already: stored as its kind of data stores them, without labels."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError
from fedstill.core.kind import Kind
from fedstill.data.columns import listed
from fedstill.data.kinds import Series, Table, Tokens
from fedstill.data.reading import Reading
from fedstill.data.separated import EMPTY_IT
from fedstill.data.tables import site_codes
from fedstill.data.tokenize import tokens
from fedstill.data.values import Floats, codes_of, dated, is_date, is_number, numbers_of, times_of


def rows_like(kind: Kind, table: pa.Table, where: str, reading: Reading | None = None) -> NDArray[Any]:
    """The rows of a table as `kind` stores them: by the names of its columns, in whatever order they stand.

    Texts come from the column that `reading` names (or the only one of texts). Series are windows one after the other,
    each of one site and in the order of time where the columns that `reading` names are there, else as the rows stand.
    """
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows")
    match kind:
        case Table():
            x = np.empty((table.num_rows, len(kind.columns)), np.float32)
            for place, name in enumerate(kind.numeric):
                x[:, place] = _numbers(table, name, where, kind.dates)
            coded = zip(kind.categorical, kind.categories, strict=True)
            for place, (name, known) in enumerate(coded, len(kind.numeric)):
                x[:, place] = codes_of(where, name, _column(table, name, where), known)
            return x
        case Tokens():
            how = Reading(
                length=kind.length, vocabulary=kind.vocabulary, embedding=kind.embedding, tokenizer=kind.tokenizer
            )
            texts = _column(table, _text(table, reading, where), where).to_pylist()
            return tokens([str(text or "") for text in texts], how)[0]
        case Series():
            return _windows(kind, table, where, reading or Reading())
    raise UsageError(f"{where}: a table has no {kind.plural}; give them as a .npy file")


def _column(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise DataError(f"{where}: no column {name!r}, which the model needs; there are {listed(table.column_names)}")
    return table.column(name)


def _numbers(table: pa.Table, name: str, where: str, dates: Collection[str] | None) -> Floats:
    """A column as numbers; dates where the model learnt from others, and the other way round, are refused."""
    column = _column(table, name, where)
    sort = dated(column).type
    if dates is not None and column.null_count < len(column):
        if is_date(sort) and name not in dates:
            raise DataError(f"{where}: column {name!r} holds dates, the model learnt from numbers there")
        if is_number(sort) and name in dates:
            raise DataError(f"{where}: column {name!r} holds numbers, the model learnt from dates there (2024-01-31)")
    return numbers_of(where, name, column, EMPTY_IT)


def needed(kind: Kind, reading: Reading | None) -> set[str] | None:
    """The columns that a model of this kind reads; None where that cannot be told before."""
    how = reading or Reading()
    match kind:
        case Table():
            return set(kind.columns)
        case Series() if kind.names:
            return {*kind.names, *filter(None, (how.time, how.site))}
        case Tokens():
            return set()  # any column may hold any texts
    return None


def _text(table: pa.Table, reading: Reading | None, where: str) -> str:
    if reading is not None and reading.text is not None:
        return reading.text
    columns = [field.name for field in table.schema if pa.types.is_string(field.type)]
    if len(columns) != 1:
        raise UsageError(
            f"{where}: say which column holds the texts; there are {listed(columns or table.column_names)}"
        )
    return str(columns[0])


def _windows(kind: Series, table: pa.Table, where: str, reading: Reading) -> NDArray[np.float32]:
    channels, length = kind.shape
    names = kind.names or _channels(channels, table, where, reading)
    values = np.stack([numbers_of(where, name, _column(table, name, where), EMPTY_IT) for name in names])
    values = np.where(np.isnan(values), np.array(kind.mean, np.float32)[:, None], values)
    runs = _runs(table, where, reading)
    starts = [run[at : at + length] for run in runs for at in range(0, len(run) - length + 1, length)]
    if not starts:
        raise DataError(f"{where}: a window has {length} rows; the longest run has {max(map(len, runs))}")
    return np.ascontiguousarray(values[:, np.stack(starts)].transpose(1, 0, 2))


def _channels(count: int, table: pa.Table, where: str, reading: Reading) -> tuple[str, ...]:
    """The columns of numbers, where the model's channels have no names: as many as it has channels."""
    others = {reading.time, reading.site, reading.label}
    names = [field.name for field in table.schema if is_number(field.type) and field.name not in others]
    if len(names) != count:
        raise DataError(
            f"{where}: the model has {count} channels without names, the table {len(names)} columns of numbers "
            f"({listed(names or ['none'])}); leave out what is no channel"
        )
    return tuple(names)


def _runs(table: pa.Table, where: str, reading: Reading) -> list[NDArray[np.int64]]:
    """The rows of each site, in the order of time."""
    order = np.arange(table.num_rows)
    if reading.time in table.column_names:
        order = np.argsort(times_of(where, str(reading.time), table.column(reading.time)), kind="stable")
    if reading.site not in table.column_names:
        return [order]
    owners = site_codes(where, str(reading.site), table.column(reading.site))[1][order]
    return [order[owners == owner] for owner in np.unique(owners)]
