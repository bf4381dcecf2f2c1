"""Rows for a model that is there already: stored as its kind of data stores them, without labels."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedstill.core.errors import DataError, UsageError
from fedstill.core.kind import Kind
from fedstill.data.columns import listed
from fedstill.data.kinds import Series, Table, Tokens
from fedstill.data.reading import Reading
from fedstill.data.tables import codes_of, numbers_of
from fedstill.data.tokenize import tokens


def rows_like(kind: Kind, table: pa.Table, where: str, reading: Reading | None = None) -> NDArray[Any]:
    """The rows of a table as `kind` stores them: by the names of its columns, in whatever order they stand.

    Texts come from the column that `reading` names (or the only one of texts); series are windows of rows in their
    order, one after the other.
    """
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows")
    match kind:
        case Table():
            x = np.empty((table.num_rows, len(kind.columns)), np.float32)
            for place, name in enumerate(kind.numeric):
                x[:, place] = numbers_of(where, name, _column(table, name, where))
            for place, (name, known) in enumerate(zip(kind.categorical, kind.categories, strict=True), place_of(kind)):
                x[:, place] = codes_of(where, name, _column(table, name, where), known)
            return x
        case Tokens():
            how = Reading(
                length=kind.length, vocabulary=kind.vocabulary, embedding=kind.embedding, tokenizer=kind.tokenizer
            )
            texts = _column(table, _text(table, reading, where), where).to_pylist()
            return tokens([str(text or "") for text in texts], how)[0]
        case Series():
            return _windows(kind, table, where)
    raise UsageError(f"{where}: a table has no {kind.plural}; give them as a .npy file")


def place_of(kind: Table) -> int:
    """Where the categories of stored rows begin."""
    return len(kind.numeric)


def _column(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise DataError(f"{where}: no column {name!r}, which the model needs; there are {listed(table.column_names)}")
    return table.column(name)


def _text(table: pa.Table, reading: Reading | None, where: str) -> str:
    if reading is not None and reading.text is not None:
        return reading.text
    found = [field.name for field in table.schema if pa.types.is_string(field.type)]
    if len(found) != 1:
        raise UsageError(f"{where}: say which column holds the texts; there are {listed(found or table.column_names)}")
    return str(found[0])


def _windows(kind: Series, table: pa.Table, where: str) -> NDArray[np.float32]:
    channels, length = kind.shape
    names = kind.names or tuple(table.column_names[:channels])
    if table.num_rows < length:
        raise DataError(f"{where}: {table.num_rows} rows; a window has {length}")
    rows = np.stack([numbers_of(where, name, _column(table, name, where)) for name in names])
    gaps = np.isnan(rows)
    rows = np.where(gaps, np.array(kind.mean, np.float32)[:, None], rows)
    count = table.num_rows // length
    return np.ascontiguousarray(rows[:, : count * length].reshape(channels, count, length).transpose(1, 0, 2))
