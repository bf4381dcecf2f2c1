"""Tables from files and frames, by pyarrow: CSV, TSV, Parquet, JSON lines; pandas, polars, pyarrow.

A damaged file is told in one line, with row and column. Rows are counted from 1, without the line of names.
"""

import gzip
import json
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from fedstill.core.errors import DataError
from fedstill.data.reading import Reading
from fedstill.data.separated import MISSING, read_separated

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".jsonl", ".ndjson", ".jsonl.gz")


@runtime_checkable
class ArrowStream(Protocol):
    """A frame that hands its columns over as Arrow does: pandas, polars and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Its columns."""


def is_table(path: Path) -> bool:
    """Is this the name of a file that `read_file` reads?"""
    return path.name.lower().endswith(SUFFIXES)


def from_frame(frame: Any) -> pa.Table:
    """The columns of a pandas, polars or pyarrow frame."""
    if not isinstance(frame, pa.Table):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # pandas: names that are numbers become texts
                frame = pa.table(frame)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise DataError(
                _odd_column(frame) or f"data = {type(frame).__name__}: no table of columns ({error})"
            ) from None
    table = _plain_texts(frame)
    return _gaps(table.drop_columns([n for n in table.column_names if n.startswith("__index_level_")]))


def _plain_texts(table: pa.Table) -> pa.Table:
    """The table with texts as plain texts: polars hands them over as views, and categories as numbers of texts.

    Categories that are numbers become texts too: who calls them categories means no quantities.
    """
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_dictionary(field.type):
            chunks = [pc.cast(_plain(chunk.dictionary), pa.string()).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(chunks, pa.string())
        elif isinstance(field.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], field.type.storage_type)
        table = table.set_column(place, field.name, _plain(column))
    return table


def _odd_column(frame: Any) -> str | None:
    """What is wrong with the first column of a frame that holds values of several sorts; None where none does."""
    for name in getattr(frame, "columns", ()):  # frames of any library; Arrow's own stream has no such list
        there = [(row, value) for row, value in enumerate(frame[name], 1) if value is not None and value == value]
        sorts = [_sort_of(value) for _, value in there]
        place = next((place for place, sort in enumerate(sorts) if sort != sorts[0]), None)
        if place is not None:
            row, value = there[place]
            return f"own data: row {row:,}, column {name!r}: {value!r} is a {sorts[place]} after {sorts[0]}s"
    return None


def _plain(values: Any) -> Any:
    """Texts of any form as plain texts; other values as they are."""
    views = pa.types.is_string_view(values.type) or pa.types.is_large_string(values.type)
    return pc.cast(values, pa.string()) if views else values


def _gaps(table: pa.Table) -> pa.Table:
    """The table in which texts that stand for a missing value are missing values."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            column = table.column(place)
            gap = pc.is_in(column, pa.array(MISSING, field.type))
            table = table.set_column(place, field.name, pc.if_else(gap, pa.scalar(None, field.type), column))
    return table


def read_file(path: Path, reading: Reading | None = None, needed: Collection[str] | None = None) -> pa.Table:
    """The columns of a file; numbers are numbers where a whole column is, and where `reading` asks for them.

    Bad numbers are refused in all columns, or in those that are `needed`, for a model that is there already.
    """
    name, how = path.name.lower(), reading or Reading()
    try:
        if name.endswith(".parquet"):
            return _gaps(_plain_texts(pa_parquet.read_table(path)))
        if "json" in name.removesuffix(".gz").rsplit(".", 1)[-1]:
            return _gaps(_read_json(path))
        return read_separated(path, "\t" if ".tsv" in name else ",", how, needed)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{path}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: damaged or cut short ({reason})") from None


def _read_json(path: Path) -> pa.Table:
    try:
        return pa_json.read_json(path)
    except pa.ArrowInvalid:
        _refuse_json(path)
        raise


def _refuse_json(path: Path) -> None:
    """Name the first row that is no object, or whose value is of another sort than those before it, if there is one."""
    sorts: dict[str, str] = {}
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        rows = (line for line in file if line.strip())
        for number, line in enumerate(rows, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}: row {number:,} is no JSON object ({error})") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}: row {number:,} is no JSON object: {line.strip()[:60]!r}")
            for name, value in row.items():
                if value is not None and sorts.setdefault(name, sort := _sort_of(value)) != sort:
                    raise DataError(
                        f"{path}: row {number:,}, column {name!r}: {value!r} is a {sort} after {sorts[name]}s"
                    )


def _sort_of(value: Any) -> str:
    sorts = ((bool, "truth value"), ((int, float), "number"), (str, "text"), (list, "list"))
    return next((sort for known, sort in sorts if isinstance(value, known)), "object")


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names for one line: the first few, and how many more."""
    every = list(names)
    more = f" … ({len(every)})" if len(every) > most else ""
    return ", ".join(every[:most]) + more
