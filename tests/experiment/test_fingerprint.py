"""A run knows its data: others are refused, and never averaged with it as if they were seeds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smallest import small_method

import fedstill as fs
from fedstill.core.errors import DataError
from fedstill.experiment.result import Result
from fedstill.report import tables


def arrays(n: int = 60, shift: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return (rng.integers(0, 100, (n, 8, 8)) + 50 * y[:, None, None] + shift).astype(np.uint8), y


def small(data: Any, runs: Path, name: str, **settings: Any) -> Result:
    plan = {"clients": 3, "active": 1.0, "partition": "iid", "rounds": 1, "workers": "inline", **settings}
    return fs.run(small_method("fedavg"), data=data, out=runs, name=name, **plan)


def test_the_fingerprint_is_of_the_content_whatever_the_data_came_as(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y)
    forms = {
        "arrays": (x, y),
        "lists": {"x_train": x.tolist(), "y_train": y.tolist()},
        "file": str(tmp_path / "mine.npz"),
    }
    prints = {name: small(data, tmp_path, name).experiment["fingerprint"] for name, data in forms.items()}
    assert len(set(prints.values())) == 1
    assert small((x, y), tmp_path, "seed 2", seed=2).experiment["fingerprint"] == prints["arrays"], "all seeds alike"
    other = x.copy()
    other[7, 3, 3] ^= 1
    assert small((other, y), tmp_path, "one bit").experiment["fingerprint"] != prints["arrays"]
    split = [
        json.loads((tmp_path / name / "partition.json").read_text())["fingerprint"] for name in ("arrays", "seed 2")
    ]
    assert split[0]["split"] != split[1]["split"]
    assert split[0]["inputs"] == split[1]["inputs"]


def test_a_run_is_not_resumed_with_other_images_of_the_same_labels(tmp_path: Path) -> None:
    small(arrays(), tmp_path, "x")
    before = (tmp_path / "x" / "metrics.jsonl").read_bytes(), (tmp_path / "x" / "experiment.json").read_bytes()
    with pytest.raises(
        DataError, match=r"data = <tuple>: not the samples that this run had \(fingerprint [0-9a-f]{16}, "
    ):
        fs.resume(tmp_path / "x", rounds=2, data=arrays(shift=1))
    assert (
        (tmp_path / "x" / "metrics.jsonl").read_bytes(),
        (tmp_path / "x" / "experiment.json").read_bytes(),
    ) == before
    assert len(fs.resume(tmp_path / "x", rounds=2, data=arrays()).rows) == 2


def test_runs_on_different_data_are_never_averaged_as_seeds(tmp_path: Path) -> None:
    """Two array runs: both say `<tuple>`, with seeds 1 and 2; only with the same numbers are they one experiment."""
    small(arrays(), tmp_path, "a", seed=1)
    small(arrays(shift=5), tmp_path, "b", seed=2)
    small(arrays(), tmp_path, "c", seed=3)
    seeds = [row["seeds"] for row in tables.comparison(tables.collect([tmp_path])) if row["model"] == "active"]
    assert sorted(seeds) == [[1, 3], [2]]
