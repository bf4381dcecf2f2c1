"""Parties that bring their own data: common classes, one normalisation, tests of their own."""

from pathlib import Path

import numpy as np
import pytest

import fedstill
from fedstill.core.errors import DataError
from fedstill.core.shelf import Storage
from fedstill.data.own import read_own
from fedstill.data.summary import agreed, common_classes, pooled, summary
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
