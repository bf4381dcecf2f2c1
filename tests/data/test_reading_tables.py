"""Tables from files and frames: what is read, and what one line says of a broken file."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import FedstillError, UsageError
from fedstill.data import Reading, load
from fedstill.data.kinds import Series, Table, Tokens

LINES = """age,chol,sex,seen,hospital,name,outcome
50,200.5,f,2024-01-01,B,Ann,ill
60,,m,2024-01-03,A,Bob,well
70,180,m,2024-01-02,B,Cyd,ill
40,220,,2024-01-05,A,Dee,well
"""


def written(tmp_path: Path, text: str = LINES, name: str = "patients.csv") -> str:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def told(spec: Any, **reading: Any) -> str:
    with pytest.raises(FedstillError) as error:
        load(spec, Reading(**reading))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_csv_is_rows_with_labels_and_sites(tmp_path: Path) -> None:
    """Dates are days: 2024-01-01 is day 19,723. Codes of sex: f 0, m 1. Sites and classes in alphabetical order."""
    data = load(written(tmp_path), Reading(label="outcome", site="hospital", ignore=("name",)))
    kind = data.kind
    assert isinstance(kind, Table)
    assert (kind.numeric, kind.categorical, kind.categories) == (("age", "chol", "seen"), ("sex",), (("f", "m"),))
    assert kind.mean[:2] == pytest.approx((55.0, 200.1666667))
    assert kind.missing == ("chol",)
    assert data.train.x[0].tolist() == [50.0, 200.5, 19723.0, 0.0]
    assert data.train.x[:, 1].isnan().tolist() == [False, True, False, False]
    assert data.train.x[3, 3].isnan()
    assert (data.class_names, data.train.y.tolist()) == (("ill", "well"), [0, 1, 0, 1])
    assert data.sites is not None
    assert (data.sites.names, data.sites.train.tolist()) == (("A", "B"), [1, 0, 1, 0])
    assert data.notes == (
        "numbers: age, chol, seen",
        "dates, as days since 1970: seen",
        "categories: sex",
        "left out: name",
    )


def test_every_form_of_a_table_is_the_same_data(tmp_path: Path) -> None:
    import pandas
    import pyarrow.csv
    import pyarrow.parquet

    frame = pandas.read_csv(written(tmp_path), parse_dates=["seen"])
    arrow = pyarrow.csv.read_csv(written(tmp_path))
    pyarrow.parquet.write_table(arrow, tmp_path / "p.parquet")
    frame.drop(columns="seen").to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    forms: list[Any] = [
        written(tmp_path, name="p.csv.gz"), written(tmp_path, LINES.replace(",", "\t"), "p.tsv"),
        str(tmp_path / "p.parquet"), str(tmp_path / "p.jsonl"), frame, arrow,
    ]  # fmt: skip
    reading = Reading(label="outcome", site="hospital", ignore=("name",))
    first = load(written(tmp_path), Reading(label="outcome", site="hospital", ignore=("name", "seen")))
    for form in forms:
        ignore = ("name",) if "jsonl" in str(form) else ("name", "seen")
        data = load(form, Reading(**{**vars(reading), "ignore": ignore}))
        assert torch.equal(data.train.inputs(), first.train.inputs())
        assert data.train.y.tolist() == first.train.y.tolist()


def test_columns_are_what_the_user_says_they_are(tmp_path: Path) -> None:
    told = Reading(label="outcome", categorical=("age",), ignore=("name", "seen", "hospital"))
    kind = load(written(tmp_path), told).kind
    assert isinstance(kind, Table)
    assert kind.categorical == ("age", "sex")
    assert kind.categories[0] == ("40", "50", "60", "70")


def test_a_split_column_makes_the_test_part_and_training_rows_alone_are_measured(tmp_path: Path) -> None:
    text = "x,part,y\n1,train,a\n3,train,b\n9,test,a\n"
    data = load(written(tmp_path, text), Reading(label="y", split="part"))
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (2, 1)
    assert data.kind.plain()["mean"] == [2.0]


def test_windows_lie_within_a_site_and_a_label_in_the_order_of_time(tmp_path: Path) -> None:
    """Site a walks at times 0–4 and sits at 5–7, site b walks at 0–2; windows of 2, step 2: 0–1, 2–3 | 5–6 | 0–1."""
    rows = [("a", t, "walk" if t < 5 else "sit", 10 + t) for t in range(8)] + [
        ("b", t, "walk", 50 + t) for t in range(3)
    ]
    order = np.random.default_rng(0).permutation(len(rows))
    lines = "".join(",".join(map(str, rows[i])) + "\n" for i in order)
    path = written(tmp_path, "who,t,what,value\n" + lines)
    data = load(path, Reading(label="what", site="who", time="t", window=2, step=2))
    assert isinstance(data.kind, Series)
    assert data.kind.names == ("value",)
    assert data.train.x[:, 0].tolist() == [[10, 11], [12, 13], [15, 16], [50, 51]]
    assert [data.class_names[c] for c in data.train.y.tolist()] == ["walk", "walk", "sit", "walk"]
    assert data.sites is not None
    assert data.sites.train.tolist() == [0, 0, 0, 1]
    step_one = load(path, Reading(label="what", site="who", time="t", window=2, step=1))
    assert len(step_one.train) == 2 + 2 + 2  # of 4 walking windows of a, the last is the test, and overlaps the third
    assert step_one.test is not None
    assert step_one.test.x[:, 0].tolist() == [[13, 14]]


def test_texts_become_the_same_tokens_everywhere(tmp_path: Path) -> None:
    """A word's token is 1 + CRC-32 mod (vocabulary − 1): "hello" is 907060870, mod 999 is 850."""
    path = written(tmp_path, 'body,spam\n"Hello, hello!",no\nBuy now,yes\n,no\n')
    data = load(path, Reading(label="spam", text="body", length=5, vocabulary=1000))
    assert isinstance(data.kind, Tokens)
    first = data.train.x[0].tolist()
    assert first[0] == first[2] == 1 + 907060870 % 999
    assert first[4] == 0
    assert data.train.x[2].tolist() == [0, 0, 0, 0, 0]


BIG = "age,w,outcome\n" + "".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(500))


@pytest.mark.parametrize(
    ("text", "reading", "line"),
    [
        (
            BIG.replace("\n321,", "\nx21,"),
            {},
            "row 322 (line 323), column 'age': 'x21' is not a number, 499 others are",
        ),
        (BIG.replace("\n321,", "\n3,21,"), {}, "row 322 has 4 columns, the line of names 3 (1 such rows): '3,21,6,b'"),
        (BIG.replace("w,outcome", "outcome,outcome"), {}, "column 'outcome' stands there twice"),
        (BIG, {"label": "outcome,w"}, "label = 'outcome,w': one column only; several labels a row are not supported"),
        (BIG, {"label": "outcom"}, "unknown column of"),
        (BIG, {"label": None}, "say which column is the label (label = …); columns: age, w, outcome"),
        (
            BIG,
            {"label": "age"},
            "label = 'age': 500 different numbers; classes are needed (regression is not supported)",
        ),
        (BIG.replace(",b\n", ",a\n"), {}, "column 'outcome': all 500 training rows have label 'a'; two classes are"),
        (BIG.replace("\n7,0,b", "\n7,0,"), {}, "row 8, column 'outcome': no label (1 rows have none)"),
        (
            "w,z,y\n" + "".join(f"{i if i == 5 else ''},{i},{'ab'[i % 2]}\n" for i in range(100)),
            {"label": "y"},
            "column 'w': 99% of 100 values are missing; leave it out (ignore = w)",
        ),
        (
            "sex,y\nf,a\nm,b\nx,a\n",
            {"label": "y", "categories": ("sex=f|m",)},
            "row 3, column 'sex': unknown category 'x'; known: f, m",
        ),
        (
            "sex,p,y\nf,train,a\nm,train,b\nx,test,a\n",
            {"label": "y", "split": "p"},
            "row 3, column 'sex': unknown category 'x'; known: f, m",
        ),
        (
            "t,v,y\n0,1,a\n1,2,b\n",
            {"label": "y", "time": "t", "window": 2},
            "no 2 rows in a row have one site and label",
        ),
        ("a,y\n", {"label": "y"}, "no rows"),
        ("\n", {"label": "y"}, "empty"),
        ("y\na\nb\n", {"label": "y"}, "no column is left to learn from"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_row_and_column(
    tmp_path: Path, text: str, reading: dict[str, Any], line: str
) -> None:
    assert line in told(written(tmp_path, text), **{"label": "outcome", **reading})


def test_a_bad_number_far_behind_the_first_block_is_named_with_its_row(tmp_path: Path) -> None:
    """What a column holds is guessed from the first 8 MiB; these lines of 55 bytes are more by row 152,521."""
    line = "1.25,2.5,3.75,4.125,5.5,6.25,7.5,8.125,9.75,10.5,11.25,{}\n"
    rows = [line.format("ab"[i % 2]) for i in range(170_000)]
    rows[162_344] = rows[162_344].replace("5.5", "5,5", 1)
    head = ",".join(f"c{i}" for i in range(11)) + ",y\n"
    path = written(tmp_path, head + "".join(rows))
    assert "row 162,345 has 13 columns, the line of names 12" in told(path, label="y")
    rows[162_344] = line.format("a").replace("3.75", "3.7S")
    path = written(tmp_path, head + "".join(rows))
    assert "row 162,345 (line 162,346), column 'c2': '3.7S' is not a number, 169,999 others are" in told(
        path, label="y"
    )


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"nonsense")
    assert "x.parquet: damaged or cut short" in told(tmp_path / "x.parquet", label="y")
    assert "gone.csv: no such file" in told(tmp_path / "gone.csv", label="y")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"time": "t"}, "time = 't': say how many rows make a window"),
        ({"window": 5}, "window = 5: say which column is the time"),
        ({"label": "y", "ignore": ("y",)}, "ignore = y: this column is asked for elsewhere"),
    ],
)
def test_a_reading_that_contradicts_itself_is_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as error:
        Reading(**settings)
    assert line in str(error.value)


def test_a_torch_data_set_is_read_once() -> None:
    pairs = torch.utils.data.TensorDataset(torch.rand(6, 3, 20), torch.arange(6) % 2)
    data = load(pairs)
    assert isinstance(data.kind, Series)
    assert torch.equal(data.train.x, pairs.tensors[0])
    assert data.train.y.tolist() == [0, 1, 0, 1, 0, 1]


def test_images_of_mixed_sizes_are_resized_when_asked(tmp_path: Path) -> None:
    from PIL import Image

    for name, side in (("cat", 9), ("dog", 12)):
        (tmp_path / name).mkdir()
        Image.new("L", (side, side), 200).save(tmp_path / name / "1.png")
    data = load(tmp_path, Reading(resize=8))
    assert data.kind.shape == (1, 8, 8)
    assert data.train.x.unique().tolist() == [200]
    assert "all images must have one size, or be resized" in told(tmp_path)


def test_a_table_and_sensors_come_with_packages() -> None:
    data = load("breast-cancer")
    assert (len(data.train) + len(data.test or ()), data.kind.shape) == (569, (30,))
    assert data.class_names == ("malignant", "benign")
    pytest.importorskip("seglearn")
    watch = load("smart-watch")
    assert watch.kind.shape == (6, 128)
    assert watch.sites is not None
    assert len(watch.sites.names) == 10
