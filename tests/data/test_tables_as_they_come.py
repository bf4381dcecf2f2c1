"""Tables as people have them: other separators, other encodings, blanks, odd columns, frames of every sort."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest

from fedstill.core.errors import FedstillError
from fedstill.data import Dataset, Reading, load
from fedstill.data.kinds import Series, Table
from fedstill.data.look import look

ROWS = 40
FRAME = pandas.DataFrame(
    {
        "age": range(ROWS),
        "chol": [i / 8 for i in range(ROWS)],
        "sex": ["f", "m"] * (ROWS // 2),
        "outcome": ["ill", "well", "well", "ill"] * (ROWS // 4),
        "hospital": list("ABCD") * (ROWS // 4),
    }
)
CSV = FRAME.to_csv(index=False)


def read(spec: Any, **reading: Any) -> Dataset:
    return load(spec, Reading(**{"label": "outcome", "site": "hospital", **reading}))


def told(spec: Any, **reading: Any) -> str:
    with pytest.raises(FedstillError) as error:
        read(spec, **reading)
    assert "\n" not in str(error.value)
    return str(error.value)


def written(tmp_path: Path, content: str | bytes, name: str = "p.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        CSV.replace(",", ";"),
        CSV.replace(",", ";").replace(".", ","),
        CSV.replace(",", "\t"),
        CSV.replace(",", "|"),
        "\ufeff" + CSV,
        CSV.replace("\n", "\r\n"),
        CSV.replace(",", " , "),
        CSV.replace("\n", "\n\n"),
    ],
    ids=["semicolons", "decimal commas", "tabs", "bars", "byte order mark", "Windows", "blanks", "empty lines"],
)
def test_every_way_of_writing_a_table_gives_the_same_data(tmp_path: Path, content: str) -> None:
    usual, other = read(written(tmp_path, CSV)), read(written(tmp_path, content, "other.csv"))
    assert other.kind == usual.kind
    assert other.class_names == usual.class_names
    assert other.train.x.equal(usual.train.x)
    assert other.train.y.equal(usual.train.y)
    assert other.sites is not None
    assert usual.sites is not None
    assert other.sites.names == usual.sites.names


def test_a_comma_within_quotes_is_no_separator(tmp_path: Path) -> None:
    path = written(tmp_path, '"age, in years";outcome\n' + "".join(f"{i};{'ab'[i % 2]}\n" for i in range(20)))
    assert read(path, site=None).notes == ("numbers: age, in years",)


def test_dates_are_days_however_they_are_written(tmp_path: Path) -> None:
    """2024-01-02 is day 19,724 after 1970-01-01; 01:00:05 is 3,605 seconds after midnight."""
    lines = "".join(f"02.01.2024,2024/01/02,2024-01-02,01:00:05,{'ab'[i % 2]}\n" for i in range(4))
    data = read(written(tmp_path, "dots,slashes,iso,clock,outcome\n" + lines), site=None)
    assert data.train.x[0].tolist() == [19724.0, 19724.0, 19724.0, 3605.0]


def test_numbers_too_long_for_a_double_are_numbers_still(tmp_path: Path) -> None:
    lines = "".join(f"{10**17 + i},{'ab'[i % 2]}\n" for i in range(4))
    data = read(written(tmp_path, "long,outcome\n" + lines), site=None)
    assert data.train.x[0, 0].item() == pytest.approx(1e17)


def test_a_column_without_a_name_is_left_out_and_told(tmp_path: Path) -> None:
    data = read(written(tmp_path, FRAME.to_csv()))
    assert data.notes[-1] == "left out: unnamed 1 (no name)"
    assert read(written(tmp_path, FRAME.to_csv()), numeric=("unnamed 1",)).train.x.shape[1] == 4


def test_a_text_in_every_row_names_the_rows_and_is_no_category(tmp_path: Path) -> None:
    text = FRAME.assign(note=[f'first line\nand "{i}", quoted' for i in range(ROWS)]).to_csv(index=False)
    assert read(written(tmp_path, text)).notes[-1] == "left out: note (40 different texts)"


def test_one_bad_number_is_named_unless_the_column_may_hold_texts(tmp_path: Path) -> None:
    path = written(tmp_path, CSV.replace("\n20,", "\nx,"))
    assert "row 21 (line 22), column 'age': 'x' is not a number, 39 others are" in told(path)
    assert read(path, categorical=("age",)).notes == ("numbers: chol", "categories: age, sex")
    assert read(path, ignore=("age",)).notes[-1] == "left out: age"
    quoted = written(tmp_path, CSV.replace("\n20,", "\nx,").replace(",f,", ',"f\nf",'), "quoted.csv")
    assert "row 21, column 'age': 'x' is not a number, 39 others are" in told(quoted)


def test_several_texts_among_numbers_are_seen_by_who_looks(tmp_path: Path) -> None:
    """3 texts among 40 values are more than bad numbers: `age` holds 38 categories, of which 37 are numbers."""
    content = CSV
    for row in (5, 20, 30):
        content = content.replace(f"\n{row},", "\nold,")
    warnings = look(read(written(tmp_path, content), categorical=("age",))).warnings
    assert "column 'age' holds categories: 37 of its 38 texts are numbers, 'old' is not" in warnings


def test_a_file_that_is_not_utf8_is_told_with_its_row(tmp_path: Path) -> None:
    latin = CSV.replace("\n7,0.875,m,ill", "\n7,0.875,m,kränk").encode("latin-1")
    assert "row 8, column 'outcome': b'kr\\xe4nk' is not UTF-8" in told(written(tmp_path, latin))
    wide = written(tmp_path, CSV.replace("\n7,", "\n7,Genève,").encode("utf-16"), "wide.csv")
    assert told(wide).endswith("wide.csv: byte 0xff is not UTF-8; save the file as UTF-8")


@pytest.mark.parametrize("labels", [["a|b", "a", "b", "c|a"], ["a,b", "b", "a", "b"], ["a; c", "b;c", "a", "c"]])
def test_several_labels_in_one_are_refused(labels: list[str]) -> None:
    line = told(FRAME.assign(outcome=labels * (ROWS // 4)))
    assert line == f"label = 'outcome': {labels[0]!r} is several labels in one; several labels a row are not supported"


def test_a_label_with_a_comma_may_be_one_label() -> None:
    assert read(FRAME.assign(outcome=["no", "yes, mild"] * 20)).class_names == ("no", "yes, mild")
    crossed = ["flat, large", "flat, small", "house, large", "house, small"]
    assert read(FRAME.assign(outcome=crossed * 10)).class_names == tuple(crossed)


def test_labels_that_are_quantities_or_names_are_refused() -> None:
    assert "40 different numbers; classes are needed (regression is not supported)" in told(FRAME, label="age")
    names = FRAME.assign(outcome=[f"n{i}" for i in range(ROWS)])
    assert "40 different values in 40 rows are no classes" in told(names)


def test_json_lines_with_gaps_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    rows = FRAME.to_dict("records")
    rows[3]["chol"] = None
    del rows[4]["sex"]
    data = read(written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "p.jsonl"))
    assert data.train.x.isnan().nonzero().tolist() == [[3, 1], [4, 2]]
    rows[30]["age"] = "old"
    mixed = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "mixed.jsonl")
    assert told(mixed).endswith("mixed.jsonl: row 31, column 'age': 'old' is a text after numbers")
    broken = written(tmp_path, '{"age": 1, "outcome": "a"}\n{"age": 2,\n', "broken.jsonl")
    assert "broken.jsonl: row 2 is no JSON object" in told(broken, site=None)


def test_categories_stored_as_numbers_of_texts_are_read_from_parquet(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(FRAME)
    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table.column(name).type) or pa.types.is_large_string(table.column(name).type):
            table = table.set_column(place, name, table.column(name).dictionary_encode())
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    stored = read(tmp_path / "p.parquet")
    assert stored.kind == read(FRAME).kind
    assert stored.train.y.equal(read(FRAME).train.y)


def test_frames_say_what_is_a_category() -> None:
    coded = FRAME.assign(sex=pandas.Categorical([1, 2] * 20), hospital=FRAME.hospital.astype("category"))
    kind = read(coded).kind
    assert isinstance(kind, Table)
    assert (kind.categorical, kind.categories) == (("sex",), (("1", "2"),))
    other = polars.DataFrame(FRAME.to_dict("list")).with_columns(
        polars.col("sex").cast(polars.Enum(["f", "m"])), polars.col("outcome").cast(polars.Categorical)
    )
    assert read(other).kind == read(FRAME).kind


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (FRAME.assign(age=[1, "x"] * 20), "own data: row 2, column 'age': 'x' is a text after numbers"),
        (
            pandas.concat([FRAME, FRAME[["age"]]], axis=1),
            "data = DataFrame: no table of columns (Duplicate column names",
        ),
        (polars.Series("age", [1, 2]), "data = Series: no table of columns"),
    ],
)
def test_a_frame_that_is_no_table_is_told_in_one_line(frame: Any, line: str) -> None:
    assert line in told(frame)


def test_frames_of_odd_columns_are_read() -> None:
    odd = FRAME.assign(month=pandas.period_range("1970-02", periods=ROWS, freq="M"))
    odd = odd.rename(columns={"age": 0})
    kind = read(odd).kind
    assert isinstance(kind, Table)
    assert kind.numeric == ("0", "chol", "month")


def test_whole_numbers_beyond_bytes_are_series_not_pictures() -> None:
    x = np.random.default_rng(0).integers(-900, 900, (12, 3, 32)).astype(np.int16)
    assert isinstance(load((x, [0, 1] * 6)).kind, Series)


def test_arrays_of_python_objects_are_told_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", x=np.zeros((4, 3)), y=np.array(["a", "b"] * 2, object))
    assert "o.npz: y holds Python objects, which are not read; save it as texts or numbers" in told(
        tmp_path / "o.npz", label=None, site=None
    )


def test_labels_with_a_fraction_in_arrays_are_called_a_regression() -> None:
    with pytest.raises(FedstillError, match=r"label 0\.5 of sample 1; must be a whole number ≥ 0 \(regression is not"):
        load((np.zeros((3, 2)), [0.0, 0.5, 1.0]))


def test_a_column_that_identifies_rows_is_left_out_unless_it_is_asked_for() -> None:
    """`patient_id` and `PatientID` differ in every row; `paid` ends in id and is a number; `clinic_id` repeats."""
    more = {
        "patient_id": range(100, 100 + ROWS),
        "PatientID": range(ROWS),
        "paid": range(ROWS),
        "clinic_id": [7, 8] * 20,
    }
    frame = FRAME.assign(**more)
    found = read(frame)
    assert isinstance(found.kind, Table)
    assert found.kind.numeric == ("age", "chol", "paid", "clinic_id")
    assert "left out: patient_id (identifies rows), PatientID (identifies rows)" in found.notes
    assert any("'clinic_id' looks like an identifier" in line for line in look(found).warnings)
    asked = read(frame, numeric=("patient_id",))
    assert isinstance(asked.kind, Table)
    assert "patient_id" in asked.kind.numeric


def test_a_column_that_tells_the_class_by_itself_is_pointed_out() -> None:
    frame = FRAME.assign(again=FRAME["outcome"].map({"ill": 1, "well": 2}))
    assert "column 'again' tells the class exactly: if it is the label again, ignore it" in look(read(frame)).warnings
    assert not any("tells the class" in line for line in look(read(FRAME)).warnings)


@pytest.mark.parametrize("ending", ["", " 00:00:00", "T00:00Z"])
def test_dates_that_a_frame_has_as_texts_are_dates(ending: str) -> None:
    """2024-01-01 is day 19,723 after 1970-01-01."""
    frame = FRAME.assign(seen=[f"2024-01-{day % 28 + 1:02}{ending}" for day in range(ROWS)])
    found = read(frame)
    assert "dates, as days since 1970: seen" in found.notes
    assert isinstance(found.kind, Table)
    assert found.train.x[:3, found.kind.numeric.index("seen")].tolist() == [19723.0, 19724.0, 19725.0]


def test_overlapping_windows_are_tested_on_rows_that_nobody_trains_on() -> None:
    """Two sites of two labels, 40 rows each: windows of 8 at every 4th row are 9 a stretch, of 18 the fifth is 4."""
    rows = range(160)
    frame = pandas.DataFrame(
        {
            "t": rows,
            "value": [float(row) for row in rows],
            "hospital": ["A"] * 80 + ["B"] * 80,
            "outcome": (["ill"] * 40 + ["well"] * 40) * 2,
        }
    )
    found = read(frame, time="t", window=8, step=4)
    assert found.test is not None
    assert found.overlapping
    assert len(found.test) == 8
    assert found.test.counts(2).tolist() == [4, 4]
    assert not set(found.train.x.flatten().tolist()) & set(found.test.x.flatten().tolist())
    assert "windows overlap" in found.notes[-1]
    apart = read(frame, time="t", window=8)
    assert apart.test is None
    assert not apart.overlapping


def test_a_hugging_face_data_set_of_images_is_one_of_images() -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(np.full((6 + row % 2, 6), row, np.uint8)) for row in range(20)]
    columns = {"image": pictures, "outcome": [0, 1] * 10, "hospital": ["A", "B"] * 10}
    given = datasets.Dataset.from_dict(columns)
    assert "images of 6×6 and of 6×7 pixels" in told(given)
    found = read(given, resize=8)
    assert found.train.shape == (1, 8, 8)
    assert found.sites is not None
    assert found.sites.names == ("A", "B")
    assert found.train.x[3].unique().tolist() == [3]


def test_percents_and_commas_between_thousands_are_numbers(tmp_path: Path) -> None:
    """12 % is 12, "1,234,567.5" is 1234567.5; beside other texts they stay texts."""
    lines = [f'{i} %,"1,234,{i:03}.5","{i},5",{"ab"[i % 2]}' for i in range(30)]
    found = read(written(tmp_path, "share,pay,odd,outcome\n" + "\n".join(lines) + "\n"), site=None)
    assert found.notes == ("numbers: share, pay", "left out: odd (30 different texts)")
    assert found.train.x[12].tolist() == [12.0, 1234012.5]


def test_a_quote_without_its_end_gets_a_short_line(tmp_path: Path) -> None:
    line = told(written(tmp_path, 'age,outcome\n1,"a\n' + "2,b\n" * 500), site=None)
    assert "all 1 training rows have label" in line
    assert len(line) < 300


def test_decimal_commas_below_one_are_no_thousands(tmp_path: Path) -> None:
    """Beside a tab 0,196 can only be a fraction, and then 1,250 is one too; without such a one they are thousands."""
    lines = "".join(f"0,{i + 100}\t1,{i + 100}\t{['0,5', '1,250'][i % 2]}\t{'ab'[i % 2]}\n" for i in range(30))
    found = read(written(tmp_path, "small\tlarge\tboth\toutcome\n" + lines, "p.tsv"), site=None)
    assert found.train.x[1].tolist() == pytest.approx([0.101, 1101, 1.25])
    quoted = read(written(tmp_path, "small,x,outcome\n" + '"0,196",1,a\n"0,250",2,b\n' * 15), site=None)
    assert quoted.notes == ("numbers: x", "categories: small")


def test_the_most_frequent_sign_of_the_line_of_names_separates(tmp_path: Path) -> None:
    lines = "".join(f"{i};{i},5;{'ab'[i % 2]}\n" for i in range(20))
    found = read(written(tmp_path, "age;weight, kg;outcome\n" + lines), site=None)
    assert found.notes == ("numbers: age, weight, kg",)
    assert found.train.x[3].tolist() == [3, 3.5]


@pytest.mark.parametrize("first", ["sep=;\n", "\ufeffsep=;\r\n", '"sep=;"\n'])
def test_a_first_line_that_says_what_separates_is_no_line_of_names(tmp_path: Path, first: str) -> None:
    path = written(tmp_path, first + CSV.replace(",", ";"))
    assert read(path).train.x.equal(read(written(tmp_path, CSV, "usual.csv")).train.x)
    ragged = written(tmp_path, first + CSV.replace(",", ";").replace("\n20;", "\n2;0;"), "ragged.csv")
    assert "row 21 has 6 columns, the line of names 5" in told(ragged)


def test_rows_in_which_nothing_stands_are_skipped(tmp_path: Path) -> None:
    """Excel leaves such rows at the end; people leave them between others."""
    usual = read(written(tmp_path, CSV)).train
    ended = read(written(tmp_path, CSV + ",,,,\n , ,,,\n", "ended.csv"))
    between = read(written(tmp_path, CSV.replace("\n20,", "\n,,,,\n20,"), "between.csv"))
    for found in (ended, between):
        assert found.train.x.equal(usual.x)
        assert found.train.kind == usual.kind
    assert "row 41, column 'outcome': no label (1 rows have none)" in told(
        written(tmp_path, CSV + "1,,,,\n", "half.csv")
    )


def test_an_unknown_category_may_be_left_empty(tmp_path: Path) -> None:
    line = told(written(tmp_path, CSV), categories=("sex=f|x",))
    assert line.endswith("unknown category 'm'; known: f, x; an empty cell counts as none of them")
