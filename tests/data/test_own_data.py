"""Parties that bring their own data: common classes, one normalisation, tests of their own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedstill
from fedstill.core.errors import DataError
from fedstill.core.shelf import Storage
from fedstill.data import load
from fedstill.data.kinds import Table
from fedstill.data.own import Own, read_own
from fedstill.data.reading import Reading
from fedstill.data.summary import agreed, common_classes, pooled, summary, unsound
from fedstill.experiment.config import experiment
from fedstill.experiment.stage import stage


def written(folder: Path, name: str, x: np.ndarray, y: list[int] | list[str], **more: np.ndarray) -> str:
    np.savez(folder / f"{name}.npz", x_train=x, y_train=np.array(y), **more)
    return str(folder / f"{name}.npz")


def images(n: int, value: int) -> np.ndarray:
    made = np.full((n, 8, 8), value, np.uint8)
    made[:, 0, 0] = 255
    return made


def test_pooled_normalisation_is_that_of_all_samples(tmp_path: Path) -> None:
    """Two parties of 3 and 1 images: their summaries give mean and deviation of the four images together."""
    a, b = images(3, 10), images(1, 200)
    own = [read_own(written(tmp_path, "a", a, [0, 1, 0])), read_own(written(tmp_path, "b", b, [1]))]
    kind = pooled([summary(party.train, party.class_names) for party in own])
    every = np.concatenate([a, b]) / 255
    assert kind.mean == pytest.approx((every.mean(),), abs=1e-6)
    assert kind.std == pytest.approx((every.std(),), abs=1e-6)


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    """One folder knows ant and cat, the other cat and dog: cat is 1 for both."""
    from PIL import Image

    for site, names in {"a": ("ant", "cat"), "b": ("cat", "dog")}.items():
        for name in names:
            folder = tmp_path / site / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(images(1, 40 * i)[0]).save(folder / f"{i}.png")
    own = [read_own(str(tmp_path / site)) for site in ("a", "b")]
    classes = common_classes([party.class_names for party in own])
    assert classes == ("ant", "cat", "dog")
    cast = [party.cast(own[0].train.kind, classes).train.y.tolist() for party in own]
    assert cast == [[0, 0, 0, 1, 1, 1], [1, 1, 1, 2, 2, 2]]


def test_names_that_are_not_how_numbers_are_written_are_texts(tmp_path: Path) -> None:
    """Wards 00, 01 and 01, 10: three classes, and 01 is the second for both sites."""
    wards = {"a": ["00", "01"] * 3, "b": ["01", "10"] * 3}
    own = [read_own(written(tmp_path, site, images(6, 9), labels)) for site, labels in wards.items()]
    classes = common_classes([party.class_names for party in own])
    assert classes == ("00", "01", "10")
    cast = [party.cast(own[0].train.kind, classes).train.y.tolist() for party in own]
    assert cast == [[0, 1] * 3, [1, 2] * 3]


def test_paths_as_clients_are_tested_on_what_they_brought(tmp_path: Path) -> None:
    """Client 0 brings a test part of 2; client 1 none, so 20 % of its 10 samples; a party may have a single class."""
    test = {"x_test": images(2, 7), "y_test": np.array([0, 1])}
    data = [written(tmp_path, "a", images(10, 5), [0, 1] * 5, **test), written(tmp_path, "b", images(10, 9), [1] * 10)]
    ready = stage(experiment({"method": "fedavg", "data": data, "active": 1.0, "model": "mlp"}), Storage())
    assert ready.env.sizes == (10, 8)
    assert [len(local) for local in ready.exam.local] == [2, 2]
    assert ready.class_names == ("0", "1")


def test_arrays_and_paths_give_the_same_run(tmp_path: Path) -> None:
    """The same samples as arrays and as files: every number of the result agrees."""
    digits = fedstill.load("digits").train
    parts = [(digits.x[k:300:3].numpy(), digits.y[k:300:3].numpy()) for k in range(3)]
    paths = [written(tmp_path, str(k), x, y.tolist()) for k, (x, y) in enumerate(parts)]
    plan = {"rounds": 1, "active": 1.0, "model": "mlp", "workers": "inline", "out": None}
    arrays, files = (fedstill.run("fedavg", data=data, **plan) for data in (parts, paths))
    assert arrays.last("active") == files.last("active")


def test_images_of_another_form_are_named(tmp_path: Path) -> None:
    own = [
        read_own(written(tmp_path, "a", images(2, 1), [0, 1])),
        read_own(written(tmp_path, "b", np.zeros((2, 9, 9), np.uint8), [0, 1])),
    ]
    with pytest.raises(DataError, match="site b: images are uint8 1×9×9, those of site a uint8 1×8×8"):
        agreed([summary(party.train, party.class_names) for party in own], ["site a", "site b"])


def tables(folder: Path, a: list[str], b: list[str], **reading: object) -> list[Own]:
    """Two parties' files with a ward, an age and a class: the wards, or under `label` the classes, are `a` and `b`."""
    own = []
    for name, values in (("a", a), ("b", b)):
        rows = [f"{values[row % len(values)]},{row},{'xy'[row % 2]}\n" for row in range(24)]
        (folder / f"{name}.csv").write_text("ward,age,y\n" + "".join(rows))
        own.append(read_own(str(folder / f"{name}.csv"), Reading(**{"label": "y", **reading})))
    return own


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        (["01", "02"], ["01", "3A"], ("01", "02", "3A")),
        (["TRUE", "FALSE"], ["true", "false"], ("False", "True")),
        (["True", "False"], ["FALSE", "Unknown"], ("False", "True", "Unknown")),
        (["1.50", "2.00"], ["1.50", "none"], ("1.50", "2.00", "none")),
        (["1.0", "2.0"], ["1", "2"], ("1", "2")),
    ],
)
def test_a_category_is_the_same_in_every_file(
    tmp_path: Path, a: list[str], b: list[str], shared: tuple[str, ...]
) -> None:
    """Whether a column looks like numbers or truth values in one file alone changes nothing."""
    parties = tables(tmp_path, a, b, categorical=("ward",))
    known = [summary(party.train, party.class_names) for party in parties]
    kind = pooled(known)
    assert isinstance(kind, Table)
    assert kind.categories == (shared,)
    agreed(known, ["a", "b"])


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        (["01", "02"], ["01", "3A"], ("01", "02", "3A")),
        (["TRUE", "FALSE"], ["True", "maybe"], ("False", "True", "maybe")),
        (["1.0", "2.0"], ["2", "10"], ("1", "2", "10")),
    ],
)
def test_a_class_is_the_same_in_every_file(tmp_path: Path, a: list[str], b: list[str], shared: tuple[str, ...]) -> None:
    parties = tables(tmp_path, a, b, label="ward", ignore=("y",))
    assert common_classes([party.class_names for party in parties]) == shared


def test_names_and_codes_of_what_was_read_right_are_those_they_were(tmp_path: Path) -> None:
    """Labels in the order of numbers, categories in that of texts; months with a 0 stand where those without one do."""
    months = [str(1 + row % 12) for row in range(24)]
    for values in (months, [f"{month:0>2}" for month in months]):
        plain, _ = tables(tmp_path, values, values, categorical=("ward",))
        assert plain.train.x[:12, 1].tolist() == [0, 4, 5, 6, 7, 8, 9, 10, 11, 1, 2, 3]  # 1 10 11 12 2 3 …
    labelled, _ = tables(tmp_path, months, months, label="ward", ignore=("y",))
    assert labelled.class_names == tuple(map(str, range(1, 13)))
    assert labelled.train.y[:12].tolist() == list(range(12))


def test_sites_keep_the_zeros_before_their_numbers(tmp_path: Path) -> None:
    lines = "".join(f"{site},{row},{'xy'[row % 2]}\n" for row in range(4) for site in ("01", "007", "10"))
    (tmp_path / "p.csv").write_text("site,age,y\n" + lines)
    sites = load(str(tmp_path / "p.csv"), Reading(label="y", site="site")).sites
    assert sites is not None
    assert sites.names == ("007", "01", "10")
    (tmp_path / "q.csv").write_text("site,age,y\n" + lines.replace("01,", "2,").replace("007", "1"))
    sites = load(str(tmp_path / "q.csv"), Reading(label="y", site="site")).sites
    assert sites is not None
    assert sites.names == ("1", "2", "10")


def test_classes_are_those_that_occur_however_high_their_numbers(tmp_path: Path) -> None:
    parties = tables(tmp_path, ["401", "428"], ["428", "20240131"], label="ward", ignore=("y",))
    assert common_classes([party.class_names for party in parties]) == ("401", "428", "20240131")
    alone = read_own(written(tmp_path, "alone", images(3, 1), [428, 428, 428]))
    assert (alone.class_names, alone.train.y.tolist()) == (("428",), [0, 0, 0])
    lacking = read_own(written(tmp_path, "lacking", images(3, 1), [0, 5, 0]))
    assert lacking.class_names == tuple(map(str, range(6))), (
        "classes known by their numbers alone: all up to the highest"
    )
    with pytest.raises(DataError, match="label 20240131 is too large; number the classes 0, 1, 2"):
        read_own(written(tmp_path, "dates", images(2, 1), [0, 20240131]))


def test_a_summary_from_elsewhere_names_no_end_of_classes(tmp_path: Path) -> None:
    known = summary(read_own(written(tmp_path, "a", images(2, 1), [0, 1])).train, ("0", "1"))
    assert unsound(known) is None
    assert (
        unsound(replace(known, class_names=tuple(map(str, range(10_001)))))
        == "10,001 classes; at most 10,000 are believed"
    )
