"""Sweeps: every point of the grid over the same seeds, finished points left alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedstill import cli
from fedstill.core.errors import UsageError
from fedstill.experiment import batch, sweep
from fedstill.experiment.config import experiment
from fedstill.experiment.result import Result
from fedstill.experiment.run import start
from fedstill.experiment.watcher import Watcher
from fedstill.report.watch import Observed

WORDS = [
    "--data",
    "digits",
    "--clients",
    "4",
    "--active",
    "0.5",
    "--rounds",
    "2",
    "--set",
    "samples=300",
    "--set",
    "epochs=1",
]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", *words])
    assert isinstance(left.value.code, int)
    return left.value.code


def test_a_grid_of_two_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "fedavg",
        "--grid",
        "lr=0.05,0.5",
        "--grid",
        "alpha=0.1,10",
        "--seeds",
        "2",
        *WORDS,
        "--out",
        str(tmp_path),
        "--json",
    ]
    assert call(*words) == 0
    out = capsys.readouterr()
    rows = json.loads(out.out)
    assert [row["method"] for row in rows[::2]] == [
        "lr=0.05, alpha=0.1",
        "lr=0.05, alpha=10",
        "lr=0.5, alpha=0.1",
        "lr=0.5, alpha=10",
    ]
    runs = [Result.read(p.parent) for p in tmp_path.glob("*/seed-*/experiment.json")]
    assert len(runs) == 8
    mine = [r for r in runs if r.experiment["method"]["lr"] == 0.5 and r.experiment["partition"]["alpha"] == 10]
    assert rows[6]["amp"]["mean"] == pytest.approx(sum(r.last("active")["amp"] for r in mine) / 2)
    page = (tmp_path / "report.html").read_text()
    assert "AMP of active (%)" in page
    assert "alpha = 10" in page

    assert call(*words) == 0
    again = capsys.readouterr()
    assert again.err.count("finished before") == 8
    assert "started" not in again.err
    assert json.loads(again.out) == rows


def test_methods_can_be_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call("fedavg", "--grid", "method=fedavg,fedprox", "--grid", "lr=0.1", *WORDS, "--out", str(tmp_path), "--json")
        == 0
    )
    names = [row["method"] for row in json.loads(capsys.readouterr().out)]
    assert names == ["method=fedavg, lr=0.1"] * 2 + ["method=fedprox, lr=0.1"] * 2
    titles = {Result.read(p.parent).experiment["method"]["name"] for p in tmp_path.glob("*/*/experiment.json")}
    assert titles == {"fedavg", "fedprox"}


def test_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("fedavg", "--grid", "lr=0.1,0.2", *WORDS, "--out", str(tmp_path / "x"), "--dry-run") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("lr=0.1: 1 of 1 runs, about ")
    assert len(out) == 3
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("grids", "word"),
    [
        ([], "no --grid: say what to vary"),
        (["lr"], "--grid 'lr': must be name=value"),
        (["lr=0.1,,2"], "must be name=value,value"),
        (["lr=0.1", "lr=0.2"], "--grid lr: given twice"),
        (["lr=0.1,0.1"], "a value comes twice"),
        (["seed=1,2,3"], "every point has the same seeds; say how many with --seeds"),
    ],
)
def test_what_cannot_be_a_grid(grids: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        sweep.axes(grids)


def test_commas_in_nested_brackets_and_quotes_part_nothing() -> None:
    chain = "[{name='private-clients',epsilon=4},{name='secure-sums'}]"
    assert sweep.axes([f"wrappers=[],{chain}", "note='a,b',c"]) == {"wrappers": ["[]", chain], "note": ["'a,b'", "c"]}


def test_a_wrong_value_names_its_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("fedavg", "--grid", "lr=0.1,-1", *WORDS, "--out", str(tmp_path)) == 2
    assert "fedstill: lr=-1: lr = -1.0: must be > 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_finished_run_on_other_data_is_not_kept(tmp_path: Path) -> None:
    """The file behind a name was replaced: the run that is there says nothing about the new one."""
    file, rng = tmp_path / "own.npz", np.random.default_rng(0)

    def write() -> None:
        np.savez(file, x_train=rng.integers(0, 255, (40, 8, 8), np.uint8), y_train=np.arange(40) % 2)

    write()
    plan = experiment({"data": str(file), "clients": 2, "active": 1.0, "rounds": 1, "method": {"name": "fedavg"}})
    job = batch.job(plan, tmp_path / "runs")
    assert batch.run_all([job]) == {}
    heard: list[str] = []
    assert batch.run_all([job], tell=lambda news: heard.append(news.what)) == {}
    assert heard == ["kept"]
    write()
    batch._fingerprint_now.cache_clear()
    assert "finished on other data" in batch.run_all([job])[job.path]


def test_a_finished_run_on_every_clients_own_file_is_kept(tmp_path: Path) -> None:
    files, rng = [str(tmp_path / f"{name}.npz") for name in "ab"], np.random.default_rng(0)
    for file in files:
        np.savez(file, x_train=rng.integers(0, 255, (20, 8, 8), np.uint8), y_train=np.arange(20) % 2)
    job = batch.job(experiment({"data": files, "active": 1.0, "rounds": 1, "method": "fedavg"}), tmp_path / "runs")
    assert batch.run_all([job]) == {}
    heard: list[str] = []
    assert batch.run_all([job], tell=lambda news: heard.append(news.what)) == {}
    assert heard == ["kept"]


class Stops(Watcher):
    """Ends a run in no good order."""

    def round(self, row: object) -> None:
        raise KeyboardInterrupt


def test_a_run_that_failed_says_why_until_it_succeeds(tmp_path: Path) -> None:
    """It began, was killed, and does not go on with other samples than its own."""
    file, rng = tmp_path / "own.npz", np.random.default_rng(0)
    samples = {"x_train": rng.integers(0, 255, (40, 8, 8), np.uint8), "y_train": np.arange(40) % 2}
    np.savez(file, **samples)
    plan = {"data": str(file), "clients": 2, "active": 1.0, "rounds": 2, "method": "fedavg", "workers": "inline"}
    job = batch.job(experiment(plan), tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        start(job.plan, out=job.path.parent, name=job.path.name, watcher=Stops())
    np.savez(file, x_train=samples["x_train"][::-1], y_train=samples["y_train"])
    reason = batch.run_all([job])[job.path]
    assert "not the samples that this run had" in reason
    assert (job.path / "last_error.txt").read_text() == f"{reason}\n"
    assert Observed(job.path).state()["status"] == "failed"
    np.savez(file, **samples)
    assert batch.run_all([job]) == {}
    assert not (job.path / "last_error.txt").exists()
    assert Observed(job.path).state()["status"] == "finished"


def test_the_best_point_is_best_by_the_metrics_own_direction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fedavg", "--grid", "lr=0.01,0.5", "--metric", "calibration-error", *WORDS, "--out", str(tmp_path)]
    assert call(*words) == 0
    assert "↓" in capsys.readouterr().out


def test_a_folder_that_is_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").touch()
    assert call("fedavg", "--grid", "lr=0.01,0.5", *WORDS, "--out", str(tmp_path / "taken")) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"fedstill: {tmp_path / 'taken'}: File exists"
