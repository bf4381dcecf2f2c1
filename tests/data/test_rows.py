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
from fedstill.data.rows import rows_like
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
    texts = rows_like(Tokens(3, 1000, 8), pa.table({"body": ["hello", None]}), "x")
    assert texts.tolist() == [[1 + 907060870 % 999, 0, 0], [0, 0, 0]]
