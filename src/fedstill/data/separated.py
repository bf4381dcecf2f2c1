"""Files of separated values, by pyarrow: CSV and TSV, with a comma, a tab, a semicolon or a bar between the values.

What is wrong with a file is told in one line with its row and column. Rows count from 1, without the line of names.
"""

import codecs
import gzip
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fedstill.core.errors import DataError
from fedstill.data.reading import Reading

MISSING = ["", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""What stands for a missing value."""
FEW = 0.01
"""A column of numbers with no more than this share of texts has bad numbers; with more, it holds categories."""
ENOUGH = 10
"""Beside so many numbers a single text is a bad number, whatever its share."""
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
GROUPED = r"^\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*$"
"""A number with commas between its thousands, as in `1,234,567.5`; `0,196` is none."""
PERCENT = r"\s*%\s*$"
COMMA_NUMBER = r"^\s*[+-]?\d+(,\d+)?\s*$"
BELOW_ONE = r"^\s*[+-]?0,\d"
"""What only a number with a decimal comma begins with."""
POINTS = r"[1-9]\d{0,2}(\.\d{3})+"
"""A whole number with points between its thousands, as in `1.234.567`."""
POINTED = rf"^\s*[+-]?(\d{{1,3}}|{POINTS})\s*$"
POINTED_COMMA = rf"^\s*[+-]?(\d+|{POINTS})(,\d+)?\s*$"
NO_DECIMALS = r",|\.\d{3}\."
"""What says that points stand between thousands: a decimal comma, or a second point."""
ZERO_FIRST = r"^[+-]?0\d"
"""A code such as `01`, which is another than `1`."""
WHOLE = r"^-?\d{1,18}$"
POINT_ZERO = r"^-?\d+\.0$"
"""A whole number as pandas writes it into a column that lacks some."""
TRUTH = r"^(true|True|TRUE|false|False|FALSE)$"
SEP_LINE = re.compile(r'"?sep=(.)"?$', re.IGNORECASE)
"""The first line by which Excel is told what separates the values."""
DATES = [pa_csv.ISO8601, "%d.%m.%Y", "%Y/%m/%d"]
"""How dates may be written: only forms that leave no doubt which is the day and which the month."""
HEAD = 1 << 16
"""Bytes in which the line of names is looked for."""


@dataclass(frozen=True)
class _Layout:
    """What separates a file's values, and how many lines stand before that of the names."""

    path: Path
    delimiter: str
    skip: int = 0

    @property
    def reading(self) -> pa_csv.ReadOptions:
        return pa_csv.ReadOptions(block_size=8 << 20, skip_rows=self.skip)

    def parsing(self, **how: Any) -> pa_csv.ParseOptions:
        """Rows may go on over several lines, within quotes."""
        return pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, **how)


def read_separated(path: Path, usual: str, how: Reading, needed: Collection[str] | None = None) -> pa.Table:
    """The columns of a file whose values are separated by `usual`, or by whatever its line of names shows.

    Columns of categories, labels and sites that `how` names are read as they stand, `01` as `01`. Such columns, and
    what is not `needed` (None: all are), may hold any texts beside numbers; in others a few texts are bad numbers.
    """
    layout = _layout(path, usual)
    categories, names = {*how.categorical, *how.declared}, {how.label, how.site}
    any_text = {how.site, how.text, *how.ignore, *categories}
    try:
        table = _csv(layout, [name for name in _names(layout) if name.strip() in categories | names])
    except pa.ArrowInvalid as problem:
        if "invalid UTF8" in str(problem):
            table = _csv(layout, ())  # bytes that are no texts are named below
        else:
            _refuse_ragged(layout)
            if "conversion error" not in str(problem):
                raise
            table = _csv(layout, _names(layout))  # a later row is not what the first rows promised
    raw = list(table.column_names)
    table = table.rename_columns([name.strip() or f"{UNNAMED} {n}" for n, name in enumerate(raw, 1)])
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} stands there twice")
    columns: dict[str, pa.ChunkedArray] = {}
    for name in table.column_names:
        column, whatever = table.column(name), name in any_text or (needed is not None and name not in needed)
        if name in categories and pa.types.is_string(column.type):
            columns[name] = _as_it_stands(column)
        elif name in names and (plain := _truths_or_codes(column)) is not None:
            columns[name] = plain
        else:
            columns[name] = _retyped(layout, name, column, whatever, advice=ADVICE if needed is None else EMPTY_IT)
        if name in names:
            columns[name] = _whole(columns[name], column)
    doubts = _points_between_thousands(layout, dict(zip(table.column_names, raw, strict=True)), table, columns)
    return _noted(_without_blank_end(pa.table(columns)), doubts)


def _layout(path: Path, usual: str) -> _Layout:
    """What is most frequent in the line of names separates the values, of several `usual`; or a line before says it."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}: byte 0x{head[0]:02x} is not UTF-8; save the file as UTF-8")
    lines = head.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    first = next((place for place, line in enumerate(lines) if line), None)
    if first is None:
        raise DataError(f"{path}: empty")
    if (said := SEP_LINE.match(lines[first])) is not None:
        return _Layout(path, said[1], skip=first + 1)
    outside = "".join(lines[first].split('"')[::2])  # a sign within quotes is part of a name
    return _Layout(path, max((usual, ";", "\t", "|", ","), key=outside.count))


UNNAMED = "unnamed"
"""How the name of a column begins that has none, such as the numbers of rows that pandas writes."""


def _csv(layout: _Layout, texts: Collection[str], only: Collection[str] = ()) -> pa.Table:
    """The columns (or `only` these), those in `texts` as texts."""
    convert = pa_csv.ConvertOptions(
        null_values=MISSING, strings_can_be_null=True, timestamp_parsers=DATES,
        column_types=dict.fromkeys(texts, pa.string()), include_columns=list(only),
    )  # fmt: skip
    return pa_csv.read_csv(
        layout.path, read_options=layout.reading, parse_options=layout.parsing(), convert_options=convert
    )


def _names(layout: _Layout) -> list[str]:
    lenient = layout.parsing(invalid_row_handler=lambda row: "skip")
    with pa_csv.open_csv(layout.path, read_options=layout.reading, parse_options=lenient) as reader:
        return list(reader.schema.names)


def _refuse_ragged(layout: _Layout) -> None:
    """Name the first row that has too many or too few columns, if there is one."""
    ragged: list[Any] = []

    def note(row: Any) -> str:
        ragged.append(row)
        return "skip"

    pa_csv.read_csv(
        layout.path,
        read_options=pa_csv.ReadOptions(use_threads=False, skip_rows=layout.skip),
        parse_options=layout.parsing(invalid_row_handler=note),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(_names(layout), pa.string())),
    )
    if ragged:
        first = ragged[0]
        where = "" if first.number is None else f" {first.number - 1 - layout.skip:,}"
        raise DataError(
            f"{layout.path}: row{where} has {first.actual_columns} columns, the line of names {first.expected_columns}"
            f" ({len(ragged):,} such rows): {first.text[:60]!r}"
        )


def _as_it_stands(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of categories as texts; whole numbers that pandas wrote with a `.0` without it."""
    column = trimmed(column)
    return pc.replace_substring(column, ".0", "") if _all(column, POINT_ZERO) else column


def _truths_or_codes(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column of labels or sites whose texts must not become numbers: truth values, codes such as `01`; else None."""
    if not pa.types.is_string(column.type):
        return None
    column = trimmed(column)
    if _all(column, TRUTH):
        return pc.equal(pc.utf8_lower(column), "true")
    return column if _any(column, ZERO_FIRST) else None


def _whole(numbers: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers that stand in a file as whole ones, as such."""
    if not (pa.types.is_floating(numbers.type) and pa.types.is_string(texts.type) and _all(trimmed(texts), WHOLE)):
        return numbers
    return pc.cast(trimmed(texts), pa.int64())


def _all(column: pa.ChunkedArray, pattern: str) -> bool:
    """Are there texts, and all of them like this?"""
    return bool(pc.all(pc.match_substring_regex(column, pattern), min_count=1).as_py())


def _any(column: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, pattern)).as_py())


def _retyped(layout: _Layout, name: str, column: pa.ChunkedArray, any_text: bool, advice: str) -> pa.ChunkedArray:
    """A column of texts without blanks around them; as numbers where all are, or the first that is none, named."""
    path = layout.path
    if pa.types.is_binary(column.type):
        raise _not_utf8(path, name, column)
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return column
    column = trimmed(column)
    if _decimal_commas(column, layout.delimiter):
        return _decimal(column)
    column = _bare(column, groups=layout.delimiter != ";")
    looks = pc.match_substring_regex(column, NUMBER)
    texts = pc.sum(pc.invert(looks)).as_py() or 0
    there = len(column) - column.null_count
    if there and texts == 0:
        return pc.cast(column, pa.float64())
    if not any_text and (texts <= FEW * there or (texts == 1 and there > ENOUGH)):
        row = pc.index(pc.fill_null(looks, True), False).as_py()
        line = _one_line_a_row(path, len(column))
        raise bad_number(path, name, row, column[row].as_py(), there - texts, line, advice)
    return column


def _decimal_commas(column: pa.ChunkedArray, delimiter: str) -> bool:
    """Are all numbers with decimal commas? Where no semicolon separates them, one below 1 must show it."""
    if delimiter == ";":
        return _all(column, POINTED_COMMA) and _any(column, NO_DECIMALS)
    return delimiter != "," and _all(column, COMMA_NUMBER) and _any(column, BELOW_ONE)


def _decimal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers from texts with points between thousands and a decimal comma."""
    return pc.cast(pc.replace_substring(pc.replace_substring(column, ".", ""), ",", "."), pa.float64())


def _points_between_thousands(
    layout: _Layout, raw: dict[str, str], table: pa.Table, columns: dict[str, pa.ChunkedArray]
) -> list[str]:
    """Read `1.017` beside `999` as 1017 where other columns show that commas are decimal; else say that it is in doubt.

    Only where semicolons separate the values, as German Excel writes them.
    """
    suspects = [name for name, column in columns.items() if layout.delimiter == ";" and _thousandths(column)]
    if not suspects:
        return []
    again = _csv(layout, [raw[name] for name in suspects], only=[raw[name] for name in suspects])
    written = {name: trimmed(again.column(raw[name])) for name in suspects}
    suspects = [name for name in suspects if _all(written[name], POINTED)]
    texts = [table.column(name) for name in columns if pa.types.is_string(table.column(name).type)]
    if any(_decimal_commas(trimmed(column), ";") for column in texts):
        columns.update({name: _decimal(written[name]) for name in suspects})
        return []
    pointed = {name: written[name].filter(pc.match_substring(written[name], "."))[0].as_py() for name in suspects}
    return [
        f"column {name!r}: {text} is read as a number below 1,000; if its point stands between thousands, leave it out"
        for name, text in pointed.items()
    ]


def _thousandths(column: pa.ChunkedArray) -> bool:
    """Numbers below 1,000 of which some, and none to more than three places, are broken: as `1.017` is, taken so."""
    if not pa.types.is_floating(column.type) or column.null_count == len(column):
        return False
    values = column.drop_null().to_numpy()
    broken = values != np.rint(values)
    small = bool((np.abs(values) < 1000).all()) and bool((np.abs(values[broken]) >= 1).all())
    return small and bool(broken.any()) and bool((np.abs(values * 1000 - np.rint(values * 1000)) < 1e-6).all())


DOUBTS = b"fedstill doubts"


def _noted(table: pa.Table, doubts: Iterable[str]) -> pa.Table:
    lines = list(doubts)
    return table.replace_schema_metadata({DOUBTS: json.dumps(lines)}) if lines else table


def doubts_of(table: pa.Table) -> tuple[str, ...]:
    """What may be wrong with how a file's columns were read."""
    return tuple(json.loads((table.schema.metadata or {}).get(DOUBTS, b"[]")))


def _without_blank_end(table: pa.Table) -> pa.Table:
    """The table without the rows at its end in which nothing stands, which Excel leaves there."""
    if not table.num_rows or any(column[-1].is_valid for column in table.columns):
        return table
    rows = np.flatnonzero(filled(table))
    return table.slice(0, int(rows[-1]) + 1 if len(rows) else 0)


def filled(table: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """In which rows does anything stand?"""
    there = np.zeros(table.num_rows, bool)
    for column in table.columns:
        there |= np.asarray(pc.is_valid(column).to_numpy(), bool)
    return there


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


ADVICE = "mend it, or name the column in categorical"
EMPTY_IT = "mend it, or leave its cell empty"
"""The advice where a model is there already, and with it what a column holds."""


def bad_number(
    where: object, name: str, row: int, value: object, others: int, line: bool = False, advice: str = ADVICE
) -> DataError:
    """The error for a value that should be a number; `row` counts from 0, and `line` asks for the line of the file."""
    place = f"row {row + 1:,}" + (f" (line {row + 2:,})" if line else "")
    return DataError(f"{where}: {place}, column {name!r}: {value!r} is not a number, {others:,} others are; {advice}")
