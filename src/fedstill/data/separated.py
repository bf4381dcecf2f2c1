"""Files of separated values, by pyarrow: CSV and TSV, with a comma, a tab, a semicolon or a bar between the values.

What is wrong with a file is told in one line with its row and column. Rows count from 1, without the line of names.
"""

import codecs
import gzip
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fedstill.core.errors import DataError

MISSING = ["", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""What stands for a missing value."""
FEW = 0.01
"""A column of numbers with no more than this share of texts has bad numbers; with more, it holds categories."""
ENOUGH = 10
"""Beside so many numbers a single text is a bad number, whatever its share."""
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
GROUPED = r"^\s*[+-]?\d{1,3}(,\d{3})+(\.\d+)?\s*$"
"""A number with commas between its thousands, as in `1,234,567.5`."""
PERCENT = r"\s*%\s*$"
COMMA_NUMBER = r"^\s*[+-]?\d+(,\d+)?\s*$"
DATES = [pa_csv.ISO8601, "%d.%m.%Y", "%Y/%m/%d"]
"""How dates may be written: only forms that leave no doubt which is the day and which the month."""
HEAD = 1 << 16
"""Bytes in which the line of names is looked for."""


def read_separated(path: Path, usual: str, any_text: Collection[str | None] = ()) -> pa.Table:
    """The columns of a file whose values are separated by `usual`, or by whatever its line of names shows.

    Columns in `any_text` may hold any texts beside numbers; in others a few texts among numbers are bad numbers.
    """
    delimiter = _delimiter(path, usual)
    try:
        table = _csv(path, delimiter)
    except pa.ArrowInvalid as problem:
        _refuse_ragged(path, delimiter)
        if "conversion error" not in str(problem):
            raise
        table = _csv(path, delimiter, texts=True)  # a later row is not what the first rows promised
    table = table.rename_columns([name.strip() or f"{UNNAMED} {n}" for n, name in enumerate(table.column_names, 1)])
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} stands there twice")
    columns = [_retyped(path, name, table.column(name), delimiter, name in any_text) for name in table.column_names]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _delimiter(path: Path, usual: str) -> str:
    """What separates the names in the first line: the usual sign where it occurs there, else the most frequent."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}: byte 0x{head[0]:02x} is not UTF-8; save the file as UTF-8")
    first = head.decode("utf-8", "replace").lstrip("\r\n").splitlines()[:1]
    if not first:
        raise DataError(f"{path}: empty")
    outside = "".join("".join(first).split('"')[::2])  # a sign within quotes is part of a name
    return usual if usual in outside else max((usual, ";", "\t", "|", ","), key=outside.count)


UNNAMED = "unnamed"
"""How the name of a column begins that has none, such as the numbers of rows that pandas writes."""


def _csv(path: Path, delimiter: str, texts: bool = False) -> pa.Table:
    convert = pa_csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True, timestamp_parsers=DATES)
    if texts:
        convert.column_types = dict.fromkeys(_names(path, delimiter), pa.string())
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
    ragged: list[Any] = []

    def note(row: Any) -> str:
        ragged.append(row)
        return "skip"

    pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(use_threads=False),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(_names(path, delimiter), pa.string())),
    )
    if ragged:
        first = ragged[0]
        where = "" if first.number is None else f" {first.number - 1:,}"
        raise DataError(
            f"{path}: row{where} has {first.actual_columns} columns, the line of names {first.expected_columns}"
            f" ({len(ragged):,} such rows): {first.text[:60]!r}"
        )


def _retyped(path: Path, name: str, column: pa.ChunkedArray, delimiter: str, any_text: bool) -> pa.ChunkedArray:
    """A column of texts without blanks around them; as numbers where all are, or the first that is none, named."""
    if pa.types.is_binary(column.type):
        raise _not_utf8(path, name, column)
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return column
    column = trimmed(column)
    if delimiter == ";" and pc.all(pc.match_substring_regex(column, COMMA_NUMBER)).as_py():
        return pc.cast(pc.replace_substring(column, ",", "."), pa.float64())
    column = _bare(column, groups=delimiter != ";")
    looks = pc.match_substring_regex(column, NUMBER)
    texts = pc.sum(pc.invert(looks)).as_py() or 0
    there = len(column) - column.null_count
    if there and texts == 0:
        return pc.cast(column, pa.float64())
    if not any_text and (texts <= FEW * there or (texts == 1 and there > ENOUGH)):
        row = pc.index(pc.fill_null(looks, True), False).as_py()
        raise bad_number(path, name, row, column[row].as_py(), there - texts, line=_one_line_a_row(path, len(column)))
    return column


def _bare(column: pa.ChunkedArray, groups: bool) -> pa.ChunkedArray:
    """A column of texts without percent signs, and with `groups` without commas between thousands, if it is numbers."""
    bare = pc.replace_substring_regex(column, PERCENT, "")
    if groups:
        grouped = pc.match_substring_regex(bare, GROUPED)
        bare = pc.if_else(grouped, pc.replace_substring(bare, ",", ""), bare)
    return bare if pc.all(pc.match_substring_regex(bare, NUMBER)).as_py() else column


def trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts without blanks around them, in which what stands for a missing value is missing."""
    if not pc.any(pc.match_substring_regex(column, r"^\s|\s$")).as_py():
        return column
    column = pc.utf8_trim_whitespace(column)
    gap = pc.is_in(column, pa.array(MISSING, column.type))
    return pc.if_else(gap, pa.scalar(None, column.type), column)


def _not_utf8(path: Path, name: str, column: pa.ChunkedArray) -> DataError:
    """The error for a column with bytes that are no UTF-8, with the first row that has some."""
    for row, value in enumerate(column.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return DataError(f"{path}: row {row + 1:,}, column {name!r}: {value!r} is not UTF-8; save it as UTF-8")
    return DataError(f"{path}: column {name!r} holds bytes, no texts")


def _one_line_a_row(path: Path, rows: int) -> bool:
    """Is every row one line, so that a row's number tells its line?"""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return lines - rows in (0, 1)  # the last line may lack its end


def bad_number(where: object, name: str, row: int, value: object, others: int, line: bool = False) -> DataError:
    """The error for a value that should be a number; `row` counts from 0, and `line` asks for the line of the file."""
    place = f"row {row + 1:,}" + (f" (line {row + 2:,})" if line else "")
    return DataError(
        f"{where}: {place}, column {name!r}: {value!r} is not a number, "
        f"{others:,} others are; mend it, or name the column in categorical"
    )
