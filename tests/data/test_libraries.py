"""Data as other libraries hold them, by these libraries themselves: polars, Hugging Face's `datasets`, `tokenizers`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import DataError, UsageError
from fedstill.data import Reading, load
from fedstill.data.kinds import Table, Tokens
from fedstill.experiment.config import experiment
from fedstill.experiment.run import start

COLUMNS: dict[str, list[Any]] = {
    "age": [50, 60, 70, 40],
    "chol": [200.5, None, 180.0, 220.0],
    "sex": ["f", "m", None, "m"],
    "hospital": ["B", "A", "B", "A"],
    "outcome": ["ill", "well", "ill", "well"],
}
READING = Reading(label="outcome", site="hospital")


def csv(tmp_path: Path) -> str:
    rows = zip(*COLUMNS.values(), strict=True)
    lines = [",".join("" if v is None else str(v) for v in row) for row in rows]
    (tmp_path / "p.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return str(tmp_path / "p.csv")


def assert_same(found: Any, wanted: Any) -> None:
    assert found.kind == wanted.kind
    assert torch.equal(found.train.inputs(), wanted.train.inputs())
    assert (found.train.y.tolist(), found.class_names) == (wanted.train.y.tolist(), wanted.class_names)
    assert found.sites is not None
    assert (found.sites.names, found.sites.train.tolist()) == (wanted.sites.names, wanted.sites.train.tolist())


def test_a_polars_frame_is_what_its_csv_is(tmp_path: Path) -> None:
    """Also where texts are a categorical, and where the frame was read lazily or in two pieces."""
    import polars as pl

    frame = pl.DataFrame(COLUMNS)
    wanted = load(csv(tmp_path), READING)
    assert isinstance(wanted.kind, Table)
    assert_same(load(frame, READING), wanted)
    assert_same(load(frame.with_columns(pl.col("sex").cast(pl.Categorical)), READING), wanted)
    assert_same(load(pl.concat([frame[:1], frame[1:]], rechunk=False), READING), wanted)
    assert_same(load(pl.scan_csv(csv(tmp_path)).collect(), READING), wanted)


def test_a_torch_data_set_of_dictionaries_is_refused_by_what_it_gives() -> None:
    class Pictures(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, place: int) -> dict[str, Any]:
            return {"image": torch.zeros(1, 8, 8), "label": place % 2}

    with pytest.raises(UsageError, match=r"give \(x, class number\) \(it gives dictionaries of image, label\)"):
        load(Pictures())


def test_a_polars_frame_with_dates_and_truths_runs_by_site(tmp_path: Path) -> None:
    """2024-01-01 is day 19,723; a truth is a number."""
    import datetime

    import polars as pl

    days = [datetime.date(2024, 1, 1 + i % 5) for i in range(40)]
    frame = pl.DataFrame(
        {"day": days, "smokes": [i % 3 == 0 for i in range(40)], "w": [float(i) for i in range(40)],
         "who": [f"s{i % 2}" for i in range(40)], "y": [i % 2 for i in range(40)]}
    )  # fmt: skip
    data = load(frame, Reading(label="y", site="who"))
    assert data.train.x[0].tolist() == [19723.0, 1.0, 0.0]
    plan = {"method": {"name": "fedavg", "epochs": 1}, "data": frame, "label": "y", "site": "who", "rounds": 1}
    assert start(experiment(plan), out=None).last("active")["amp"] >= 0


def test_a_hugging_face_data_set_is_a_table_whose_class_names_are_known(tmp_path: Path) -> None:
    """Its class label 0 is ill, 1 is well."""
    import datasets

    label = datasets.ClassLabel(names=["ill", "well"])
    numbers = {**COLUMNS, "outcome": [label.str2int(name) for name in COLUMNS["outcome"]]}
    features = datasets.Features(
        {"age": datasets.Value("int64"), "chol": datasets.Value("float64"), "sex": datasets.Value("string"),
         "hospital": datasets.Value("string"), "outcome": label}
    )  # fmt: skip
    part = datasets.Dataset.from_dict(numbers, features=features)
    wanted = load(csv(tmp_path), READING)
    assert_same(load(part, READING), wanted)
    assert_same(load(part.select([3, 1, 0, 2]).select([2, 1, 3, 0]), READING), load(part.select([0, 1, 2, 3]), READING))
    both = load(datasets.DatasetDict(train=part, test=part.select([2, 0])), READING)
    assert both.test is not None
    assert both.class_names == ("ill", "well")
    assert (len(both.train), both.test.x[:, 0].tolist()) == (4, [70.0, 50.0])


def test_a_hugging_face_data_set_of_texts_becomes_tokens() -> None:
    import datasets

    part = datasets.Dataset.from_dict({"body": ["hello hello", "buy now"], "spam": ["no", "yes"]})
    data = load(part, Reading(label="spam", text="body", length=3, vocabulary=1000))
    assert isinstance(data.kind, Tokens)
    assert data.train.x[0].tolist() == [1 + 907060870 % 999] * 2 + [0]


def vocabulary(path: Path) -> str:
    """A file of the `tokenizers` library: unknown 0, buy 1, now 2, hello 3."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = {"[UNK]": 0, "buy": 1, "now": 2, "hello": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return str(path)


def test_a_tokenizers_file_numbers_words_one_higher_and_0_is_for_empty_places(tmp_path: Path) -> None:
    path = tmp_path / "mails.csv"
    path.write_text("body,spam\nBuy NOW hello,yes\nhello you,no\n,no\n")
    file = vocabulary(tmp_path / "tokenizer.json")
    data = load(str(path), Reading(label="spam", text="body", length=4, tokenizer=file))
    assert data.train.x.tolist() == [[2, 3, 4, 0], [4, 1, 0, 0], [0, 0, 0, 0]]
    assert isinstance(data.kind, Tokens)
    assert (data.kind.vocabulary, data.kind.tokenizer) == (5, file)


def test_a_run_on_a_tokenizers_file_trains(tmp_path: Path) -> None:
    path = tmp_path / "mails.csv"
    path.write_text("body,spam\n" + 30 * "buy now,yes\nhello,no\n")
    file = vocabulary(tmp_path / "tokenizer.json")
    reading = Reading(label="spam", text="body", length=4, tokenizer=file, embedding=8)
    method = {"name": "fedavg", "optimizer": "adam", "lr": 0.05, "epochs": 3, "batch": 16}
    plan = {"method": method, "data": str(path), "reading": reading, "clients": 2, "active": 1.0, "rounds": 2}
    assert start(experiment({**plan, "model": "bag", "partition": "iid"}), out=None).last("active")["amp"] == 1.0


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    (tmp_path / "mails.csv").write_text("body,spam\na,yes\nb,no\n")
    for name, line in (("t.json", "cannot be read"), ("gone.json", "must be hash, or the path of a tokenizers file")):
        with pytest.raises(DataError, match=line) as refused:
            load(str(tmp_path / "mails.csv"), Reading(label="spam", text="body", tokenizer=str(tmp_path / name)))
        assert "\n" not in str(refused.value)
