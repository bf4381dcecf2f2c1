"""Rows, texts and windows for a model that is there already."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
from smallest import small_method

import fedstill
from fedstill.cli import main
from fedstill.core.errors import DataError
from fedstill.core.kind import kind_of
from fedstill.data.kinds import Series, Table, Tokens
from fedstill.data.reading import Reading
from fedstill.data.rows import rows_like
from fedstill.experiment.export import write_model
from fedstill.experiment.predict_rows import classify_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    """A run on rows whose age says the class."""
    rng = np.random.default_rng(0)
    age = np.concatenate([rng.normal(30, 3, 60), rng.normal(70, 3, 60)])
    frame = pandas.DataFrame(
        {"age": age, "sex": rng.choice(["f", "m"], 120), "at": np.arange(120) % 2, "ill": np.repeat(["no", "yes"], 60)}
    )
    folder: Path = tmp_path_factory.mktemp("runs")
    method = small_method("fedavg", epochs=10, optimizer="adam", lr=0.01)
    fedstill.run(method, data=frame, label="ill", site="at", rounds=2, workers="inline", out=folder, name="rows")
    return folder / "rows"


def test_rows_are_classified_whatever_the_order_of_columns(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("name,sex,age\nAnn,f,28\nBob,m,75\nCyd,,69\n")
    found = classify_rows(run, tmp_path / "new.csv")
    assert [row["class"] for row in found["rows"]] == ["no", "yes", "yes"]
    assert [row["row"] for row in found["rows"]] == [1, 2, 3]
    write_model(run, tmp_path / "model.safetensors")
    assert classify_rows(tmp_path / "model.safetensors", tmp_path / "new.csv") == found, "the file alone is enough"


def test_a_frame_is_predicted_and_what_it_lacks_is_named(run: Path) -> None:
    model = fedstill.load_model(run)
    frame = pandas.DataFrame({"sex": ["f", "m"], "age": [72.0, 31.0]})
    assert [model.class_names[c] for c in model.predict(frame)] == ["yes", "no"]
    with pytest.raises(DataError, match="no column 'age', which the model needs; there are sex"):
        model.predict(frame[["sex"]])
    with pytest.raises(DataError, match="row 2, column 'sex': unknown category 'x'; known: f, m"):
        model.predict(frame.assign(sex=["f", "x"]))


def test_series_are_windows_of_rows_and_texts_are_tokens() -> None:
    table = pa.table({"b": [10.0, 11.0, 12.0, 13.0, 14.0], "a": [0.0, None, 2.0, 3.0, 4.0]})
    windows = rows_like(Series((2, 2), (5.0, 6.0), (1.0, 1.0), ("a", "b")), table, "x")
    assert windows.tolist() == [[[0, 5], [10, 11]], [[2, 3], [12, 13]]]
    with pytest.raises(DataError, match="x: a window has 6 rows; the longest run has 5"):
        rows_like(Series((2, 6), (5.0, 6.0), (1.0, 1.0), ("a", "b")), table, "x")
    texts = rows_like(Tokens(3, 1000, 8), pa.table({"body": ["hello", None]}), "x")
    assert texts.tolist() == [[1 + 907060870 % 999, 0, 0], [0, 0, 0]]


def test_windows_lie_within_one_site_and_in_the_order_of_time() -> None:
    """Site a has 3 rows, at times 1, 2, 3: one window of 2 and a rest. Site b has 2 rows, one window."""
    table = pa.table({"v": [3.0, 20.0, 1.0, 10.0, 2.0], "t": [3, 2, 1, 1, 2], "who": ["a", "b", "a", "b", "a"]})
    windows = rows_like(Series((1, 2), (0.0,), (1.0,), ("v",)), table, "x", Reading(site="who", time="t", window=2))
    assert windows.tolist() == [[[1, 2]], [[10, 20]]]


def test_the_samples_of_an_npz_file_are_classified(run: Path, tmp_path: Path) -> None:
    """The same rows as in the table above, as codes; columns stand in the order of `names`."""
    rows = np.array([[0, 28], [1, 75], [np.nan, 69]])
    np.savez(tmp_path / "new.npz", x=rows, names=["sex", "age"], categories=["sex=f|m"])
    found = classify_rows(run, tmp_path / "new.npz")["rows"]
    assert [(row["sample"], row["class"]) for row in found] == [(1, "no"), (2, "yes"), (3, "yes")]
    np.savez(tmp_path / "y.npz", y=rows)
    with pytest.raises(DataError, match="no x inside, only y"):
        classify_rows(run, tmp_path / "y.npz")


@pytest.fixture(scope="module")
def coded(tmp_path_factory: Any) -> Path:
    """A run on a file whose categories look like numbers and truth values beside others; `seen` are dates."""
    folder: Path = tmp_path_factory.mktemp("coded")
    wards, flags, doses = ["01", "02", "3A"], ["True", "False", "Unknown"], ["1.50", "2", "none"]
    rows = [
        f"{wards[i % 3]},{flags[i % 3]},{doses[i % 3]},{i},2024-01-{i % 28 + 1:02},{'ab'[i % 2]}" for i in range(60)
    ]
    (folder / "p.csv").write_text("ward,flag,dose,age,seen,y\n" + "\n".join(rows) + "\n")
    plan = {"rounds": 1, "clients": 2, "active": 1.0, "partition": "iid", "workers": "inline", "out": folder}
    fedstill.run(small_method("fedavg"), data=str(folder / "p.csv"), label="y", name="run", **plan)
    return folder / "run"


NEW = "ward,flag,dose,age,seen\n"


def test_new_rows_have_the_model_s_categories_whatever_these_look_like_alone(coded: Path, tmp_path: Path) -> None:
    """A file of 01 and 02 alone, of True alone, of 1.50 alone; the same values written in another way; a blank end."""
    usual = [{"ward": "01", "flag": "True", "dose": "1.50"}, {"ward": "02", "flag": "False", "dose": "2"}]
    kind = fedstill.load_model(coded)._brought
    whole = pa.table(
        {name: [row[name] for row in usual] for name in usual[0]} | {"age": [1, 2], "seen": ["2024-01-01"] * 2}
    )
    expected = fedstill.load_model(coded).probabilities(rows_like(kind, whole, "x")).max(1).values.tolist()
    for text in (
        "01,True,1.50,1,2024-01-01\n02,False,2,2,2024-01-01\n",
        "1,TRUE,1.5,1,2024-01-01\n2,false,2.0,2,2024-01-01\n,,,,\n",
    ):
        (tmp_path / "new.csv").write_text(NEW + text)
        found = [row["probability"] for row in classify_rows(coded, tmp_path / "new.csv")["rows"]]
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("01,True,2,2024-01-31,2024-01-01", "column 'age' holds dates, the model learnt from numbers there"),
        ("01,True,2,7,19723", "column 'seen' holds numbers, the model learnt from dates there (2024-01-31)"),
        ("9,True,2,7,2024-01-01", "unknown category '9'; known: 01, 02, 3A; an empty cell counts as none of them"),
    ],
)
def test_new_rows_of_another_sort_are_refused(coded: Path, tmp_path: Path, row: str, line: str) -> None:
    (tmp_path / "new.csv").write_text(f"{NEW}{row}\n")
    with pytest.raises(DataError) as error:
        classify_rows(coded, tmp_path / "new.csv")
    assert str(error.value).endswith(line)


def test_a_bad_number_in_a_new_file_gets_advice_that_can_be_followed(coded: Path, tmp_path: Path) -> None:
    """Only in columns that the model reads; a model without its run says the same of a frame."""
    rows = [f"01,True,2,{'x' if i == 5 else i},2024-01-01,{'?!' if i == 7 else i}" for i in range(30)]
    (tmp_path / "new.csv").write_text(NEW.strip() + ",other\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError) as error:
        classify_rows(coded, tmp_path / "new.csv")
    assert "column 'age': 'x' is not a number, 29 others are; mend it, or leave its cell empty" in str(error.value)
    (tmp_path / "new.csv").write_text((tmp_path / "new.csv").read_text().replace(",x,", ",,"))
    assert len(classify_rows(coded, tmp_path / "new.csv")["rows"]) == 30
    frame = pandas.DataFrame(
        {"ward": ["01"] * 3, "flag": ["True"] * 3, "dose": ["2"] * 3, "age": list("1x3"), "seen": ["2024-01-01"] * 3}
    )
    with pytest.raises(DataError, match="'x' is not a number, 2 others are; mend it, or leave its cell empty"):
        fedstill.load_model(coded).predict(frame)


def test_a_model_from_before_says_nothing_of_dates() -> None:
    """What was written without them is read, and takes any column that can be turned into numbers."""
    kind = kind_of({"name": "table", "numeric": ["age"], "mean": [0.0], "std": [1.0]})
    assert isinstance(kind, Table)
    assert kind.dates is None
    assert "dates" not in kind.plain()
    told = kind_of({**kind.plain(), "dates": ["age"]})
    assert isinstance(told, Table)
    assert (told.dates, told.plain()["dates"], told == kind) == (("age",), ["age"], True)
    assert rows_like(kind, pa.table({"age": ["2024-01-01"]}), "x").tolist() == [[19723.0]]


def test_channels_without_names_are_all_columns_of_numbers() -> None:
    kind = Series((2, 2), (0.0, 0.0), (1.0, 1.0))
    table = pa.table({"who": ["a", "a"], "u": [1.0, 2.0], "v": [3.0, 4.0], "t": [0, 1]})
    reading = Reading(time="t", window=2)
    assert rows_like(kind, table, "x", reading).tolist() == [[[1, 2], [3, 4]]]
    with pytest.raises(
        DataError, match=r"x: the model has 2 channels without names, the table 3 columns of numbers \(u, v"
    ):
        rows_like(kind, table, "x")


def test_what_predict_prints_is_a_table_whatever_classes_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pandas.DataFrame({"age": range(40), "y": ['ill, "severe"', "well"] * 20})
    plan = {"rounds": 1, "clients": 2, "active": 1.0, "partition": "iid", "workers": "inline", "out": tmp_path}
    fedstill.run(small_method("fedavg"), data=frame, label="y", name="run", **plan)
    frame.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(SystemExit) as end:
        main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")])
    assert not end.value.code
    printed = pandas.read_csv(io.StringIO(capsys.readouterr().out))
    assert printed.columns.tolist() == ["row", "class", "probability"]
    assert set(printed["class"]) <= {'ill, "severe"', "well"}
    assert len(printed) == 40
