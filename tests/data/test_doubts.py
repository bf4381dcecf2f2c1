"""What may be wrong with data or with how they were read: `data` and `run` say it in a line each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from smallest import small_method

import fedstill
from fedstill.data import Dataset, Reading, load
from fedstill.data.look import look
from fedstill.data.own import read_own

ROWS = 40
LABELS = ["ill", "well"] * (ROWS // 2)
FRAME = pandas.DataFrame({"age": range(ROWS), "outcome": LABELS})


def read(spec: Any, **reading: Any) -> Dataset:
    return load(spec, Reading(label="outcome", **reading))


def separated(tmp_path: Path, columns: dict[str, list[str]], sign: str = ";") -> Path:
    rows = zip(*columns.values(), LABELS, strict=True)
    lines = [sign.join([*columns, "outcome"]), *(sign.join(row) for row in rows)]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "p.csv"


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        (
            1.7e9 + np.arange(ROWS),
            "numbers near 1.7e+09 are kept in steps of 128, which is much for a deviation of 11.5",
        ),
        (pandas.date_range("2024-01-01", periods=ROWS, freq="min"), "kept in steps of 0.00195"),
    ],
    ids=["seconds since 1970", "minutes of one day"],
)
def test_a_column_far_from_0_that_float32_rounds_away_is_named(values: Any, steps: str) -> None:
    data = read(FRAME.assign(at=values))
    assert len(data.doubts) == 1
    assert data.doubts[0].startswith("column 'at': ")
    assert steps in data.doubts[0]
    assert data.doubts[0] in look(data).warnings


def test_numbers_that_float32_holds_are_not_in_doubt() -> None:
    """Whole days, whole numbers of any size that are exact, a constant, and a single huge value among small ones."""
    days = pandas.date_range("2024-01-01", periods=ROWS)
    odd = [0.1] * (ROWS - 1) + [1e12]
    assert read(FRAME.assign(a=days, b=2**24 + 2 * np.arange(ROWS), c=1e10 + 1, d=odd)).doubts == ()


def test_arrays_and_windows_far_from_0_are_named_too(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 2
    far = x + np.array([0.0, 1e9])
    assert load((x, y)).doubts == ()
    assert [line[:18] for line in load((far, y)).doubts] == ["column 'column 1':"]
    series = np.repeat(far[:, :, None], 3, 2)
    assert [line[:19] for line in load((series, y)).doubts] == ["column 'channel 1':"]
    np.savez(tmp_path / "a.npz", x=far, y=y, names=["near", "far"])
    assert [line[:13] for line in read_own(str(tmp_path / "a.npz")).doubts] == ["column 'far':"]
    frame = FRAME.assign(
        t=range(ROWS), v=1e9 + np.random.default_rng(0).normal(size=ROWS), outcome=["a"] * 20 + ["b"] * 20
    )
    assert [line[:11] for line in read(frame, time="t", window=4).doubts] == ["column 'v':"]


def test_a_run_tells_what_is_in_doubt(tmp_path: Path) -> None:
    """It writes it down, and whose file it is of where clients bring their own."""
    frame = FRAME.assign(at=1.7e9 + np.arange(ROWS), ward_id=[1, 2, 3, 4] * 10, again=[1, 2] * 20)
    plan = {"label": "outcome", "rounds": 1, "workers": "inline", "out": tmp_path}
    fedstill.run(small_method("fedavg"), data=frame, clients=2, active=1.0, partition="iid", name="one", **plan)
    notes = json.loads((tmp_path / "one" / "partition.json").read_text())["notes"]
    assert any(line.startswith("column 'at': numbers near 1.7e+09") for line in notes)
    assert "column 'ward_id' looks like an identifier, and is read as a number: ignore it, or make it the site" in notes
    assert "column 'again' tells the class exactly: if it is the label again, ignore it" in notes
    frame.to_csv(tmp_path / "p.csv", index=False)
    files = [str(tmp_path / "p.csv")] * 2
    fedstill.run(small_method("fedavg"), data=files, active=1.0, name="two", **plan)
    notes = json.loads((tmp_path / "two" / "partition.json").read_text())["notes"]
    assert any(line.startswith("client 1: column 'at': numbers near") for line in notes)


def test_a_column_left_out_that_is_mostly_numbers_is_named() -> None:
    """A laboratory writes <150 for what it cannot measure: 8 of 40 values."""
    crp = ["<150" if row % 5 == 0 else f"{150 + row}.5" for row in range(ROWS)]
    data = read(FRAME.assign(crp=crp, name=[f"n{row}" for row in range(ROWS)]))
    assert data.doubts == ("column 'crp' is left out: 32 of its 40 values are numbers, and '<150' is not; mend them",)
    assert data.doubts[0] in look(data).warnings


def test_times_that_repeat_are_asked_whose_they_are() -> None:
    """Two people were measured at the same 20 times."""
    frame = FRAME.assign(
        t=[*range(20), *range(20)], outcome=["ill"] * 10 + ["well"] * 10 + ["ill"] * 10 + ["well"] * 10
    )
    assert "column 't': 20 of 40 times repeat" in read(frame, time="t", window=4).doubts[0]
    assert "(--site)" in read(frame, time="t", window=4).doubts[0]
    assert read(frame.assign(who=["a"] * 20 + ["b"] * 20), time="t", window=4, site="who").doubts == ()
    assert read(frame.assign(t=range(ROWS)), time="t", window=4).doubts == ()


def test_points_between_thousands_are_read_where_commas_are_decimal(tmp_path: Path) -> None:
    """German Excel: 999 and 1.017 are whole numbers, 3.975,20 is 3975.2, 1.234.567 has no other reading."""
    count = ["999", "1.017"] * 20
    pay, people = [f"3.9{row:02},20" for row in range(ROWS)], [f"1.234.{500 + row}" for row in range(ROWS)]
    data = read(separated(tmp_path, {"count": count, "pay": pay, "people": people}))
    assert data.train.x[:2].tolist() == [[999, pytest.approx(3900.2), 1234500], [1017, pytest.approx(3901.2), 1234501]]
    assert data.doubts == ()


def test_points_that_may_be_either_are_in_doubt(tmp_path: Path) -> None:
    """1.017 is a little more than 1 or a little more than 1,000, and nothing else in the file tells which."""
    data = read(separated(tmp_path, {"count": ["999", "1.017"] * 20}))
    assert data.train.x[:2, 0].tolist() == [999, pytest.approx(1.017)]
    line = "column 'count': 1.017 is read as a number below 1,000; if its point stands between thousands, leave it out"
    assert data.doubts == (line,)
    for plain in (["0.5", "1.017"], ["1.5", "1.017"], ["1500", "1.017"], ["0.996", "1.017"]):
        assert read(separated(tmp_path, {"count": plain * 20})).doubts == ()
    assert read(separated(tmp_path, {"count": ["999", "1.017"] * 20}, ",")).doubts == ()
