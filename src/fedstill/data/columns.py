"""Tables from files and frames, by pyarrow: CSV, TSV, Parquet, JSON lines; pandas, polars, pyarrow.

A damaged file is told in one line, with row and column. Rows are counted from 1, without the line of names.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from fedstill.core.errors import DataError

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".jsonl", ".ndjson", ".jsonl.gz")
MISSING = ["", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""What stands for a missing value."""
FEW = 0.01
"""A column of numbers with no more than this share of texts has bad numbers; with more, it holds categories."""


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
    table = _plain_texts(frame if isinstance(frame, pa.Table) else pa.table(frame))
    return _gaps(table.drop_columns([n for n in table.column_names if n.startswith("__index_level_")]))


def _plain_texts(table: pa.Table) -> pa.Table:
    """The table with texts as plain texts: polars hands them over as views, and categoricals as numbers of texts."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_dictionary(field.type):
            chunks = [_plain(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(chunks) if chunks else pa.chunked_array([pa.nulls(0)])
        table = table.set_column(place, field.name, _plain(column))
    return table


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


def read_file(path: Path) -> pa.Table:
    """The columns of a file; numbers are numbers where a whole column is."""
    name = path.name.lower()
    try:
        if name.endswith(".parquet"):
            return _gaps(pa_parquet.read_table(path))
        if "json" in name.removesuffix(".gz").rsplit(".", 1)[-1]:
            return _gaps(pa_json.read_json(path))
        return _read_csv(path, "\t" if ".tsv" in name else ",")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: damaged or cut short ({reason})") from None


def _read_csv(path: Path, delimiter: str) -> pa.Table:
    try:
        table = _csv(path, delimiter)
    except pa.ArrowInvalid as problem:
        _refuse_ragged(path, delimiter)
        if "conversion error" not in str(problem):
            raise
        table = _csv(path, delimiter, texts=True)  # a later row is not what the first rows promised
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} stands there twice")
    columns = [_retyped(path, name, table.column(name)) for name in table.column_names]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _csv(path: Path, delimiter: str, texts: bool = False) -> pa.Table:
    convert = pa_csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True)
    if texts:
        names = _names(path, delimiter)
        convert.column_types = dict.fromkeys(names, pa.string())
    return pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(block_size=8 << 20),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=convert,
    )


def _names(path: Path, delimiter: str) -> list[str]:
    lenient = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=lambda row: "skip")
    with pa_csv.open_csv(path, parse_options=lenient) as reader:
        return list(reader.schema.names)


def _refuse_ragged(path: Path, delimiter: str) -> None:
    """Name the first row that has too many or too few columns, if there is one."""
    found: list[Any] = []

    def note(row: Any) -> str:
        found.append(row)
        return "skip"

    pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(use_threads=False),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(_names(path, delimiter), pa.string())),
    )
    if found:
        first = found[0]
        where = "" if first.number is None else f" {first.number - 1:,}"
        raise DataError(
            f"{path}: row{where} has {first.actual_columns} columns, the line of names {first.expected_columns}"
            f" ({len(found):,} such rows): {first.text[:60]!r}"
        )


def _retyped(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts that are numbers, but for a few, as numbers, or the first that is none, named."""
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return column
    looks = pc.match_substring_regex(column, NUMBER)
    texts = pc.sum(pc.invert(looks)).as_py() or 0
    there = len(column) - column.null_count
    if texts == 0:
        return pc.cast(pc.utf8_trim_whitespace(column), pa.float64())
    if texts <= FEW * there:
        row = pc.index(pc.fill_null(looks, True), False).as_py()
        raise bad_number(path, name, row, column[row].as_py(), there - texts)
    return column


NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


def bad_number(where: object, name: str, row: int, value: object, others: int) -> DataError:
    """The error for a value that should be a number; `row` counts from 0."""
    return DataError(
        f"{where}: row {row + 1:,} (line {row + 2:,}), column {name!r}: {value!r} is not a number, "
        f"{others:,} others are; mend it, or name the column in categorical"
    )


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names for one line: the first few, and how many more."""
    every = list(names)
    more = f" … ({len(every)})" if len(every) > most else ""
    return ", ".join(every[:most]) + more
