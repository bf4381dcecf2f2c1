"""Rows, texts and windows for a model that is there already."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
from smallest import small_method

import fedstill
from fedstill.core.errors import DataError
from fedstill.data.kinds import Series, Tokens
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
