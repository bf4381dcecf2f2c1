"""Runs: written as they go, resumed to the same bits after any kind of stop, with the user's own data and model."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smallest import same_bits, small_experiment, small_method

import fedstill as fs
from fedstill.core import record
from fedstill.core.errors import DataError, RunError, UsageError
from fedstill.core.shelf import Storage
from fedstill.experiment.run import Watcher, resume, start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage


def state_of(path: Path) -> Any:
    state, _ = RunDir.open(path).latest()
    assert state is not None
    return state


class Notes(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


KILLED = """
import functools, os, signal, sys
import fedstill.methods.fedkf as fedkf
from smallest import small_experiment, small_method
from fedstill.experiment.run import start
first = fedkf.KnowledgeFusion.client
@functools.wraps(first)
def client(self, env, state, down, data):
    if env.round == 2:                      # in the middle of the third round
        os.kill(os.getpid(), signal.SIGKILL)
    return first(self, env, state, down, data)
fedkf.FedKF.client = client
start(small_experiment(small_method("fedkf"), rounds=4), out=sys.argv[1], name="killed")
"""


def test_killed_in_the_middle_of_a_round_it_resumes_to_the_same_bits(runs: Path) -> None:
    tests = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(runs)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(RunDir.open(runs / "killed").rows()) == 2
    resume(runs / "killed")
    start(small_experiment(small_method("fedkf"), rounds=4), out=runs, name="whole")
    killed, whole = state_of(runs / "killed"), state_of(runs / "whole")
    assert same_bits(killed.server, whole.server)
    assert all(same_bits(killed.clients[k], whole.clients[k]) for k in whole.clients)
    drop = ("seconds", "client_seconds")
    rows = [
        [{k: v for k, v in r.items() if k not in drop} for r in RunDir.open(runs / n).rows()]
        for n in ("killed", "whole")
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("damage", ["cut", "flipped", "client", "clients", "slots", "no side file"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(runs: Path, damage: str) -> None:
    start(small_experiment(small_method("fedkf"), rounds=3), out=runs, name="run")
    whole = state_of(runs / "run")
    newest = runs / "run" / "checkpoints" / "000003.safetensors"
    data = bytearray(newest.read_bytes())
    if damage == "cut":
        newest.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[-1] ^= 1
        newest.write_bytes(data)
    elif damage == "client":
        last = next((runs / "run" / "clients").glob("*-2.safetensors"))
        last.write_bytes(last.read_bytes()[:-10])
    elif damage in ("clients", "slots"):  # still a record, of other numbers
        last = next((runs / "run" / damage).glob("*-2.safetensors"))
        data = bytearray(last.read_bytes())
        data[-1] ^= 1
        last.write_bytes(data)
    else:
        newest.with_suffix(".json").unlink()
    notes = Notes()
    resume(runs / "run", watcher=notes)
    assert any(line.startswith("checkpoint of round 3 is damaged") for line in notes.lines)
    assert same_bits(whole.server, state_of(runs / "run").server)


def test_damaged_files_of_a_run_are_named_in_one_line(runs: Path) -> None:
    """A line cut off at the end is left out; one in the middle, or an experiment that is no JSON, is an error."""
    start(small_experiment(small_method("fedavg"), rounds=2), out=runs, name="run")
    file = runs / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + lines[1][:20])
    assert len(RunDir.open(runs / "run").rows()) == 1
    file.write_text(lines[0][:20] + "\n" + lines[1])
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 1 is damaged"):
        RunDir.open(runs / "run").rows()
    (runs / "run" / "experiment.json").write_text("{")
    with pytest.raises(RunError, match=r"experiment\.json: damaged"):
        RunDir.open(runs / "run")


def test_only_the_last_two_checkpoints_and_what_they_need_are_kept(runs: Path) -> None:
    start(small_experiment(small_method("fedkf"), rounds=5, active=1.0), out=runs, name="run")
    there = {p.name for p in (runs / "run" / "checkpoints").iterdir()}
    assert there == {f"00000{t}.{end}" for t in (4, 5) for end in ("json", "safetensors")}
    versions = {p.stem.split("-")[1] for p in (runs / "run" / "clients").iterdir()}
    assert versions == {"3", "4"}


def test_a_full_disk_is_one_line_and_loses_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = record.write
    count = 0

    def full(path: Path, data: bytes, safely: bool = True) -> None:
        nonlocal count
        count += path.name == "000002.safetensors"
        if count:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(record, "write", full)
    plan = small_experiment(small_method("fedavg"), rounds=3)
    with pytest.raises(RunError, match=r"cannot write .No space left on device.; what was written before is whole"):
        start(plan, out=runs, name="full")
    monkeypatch.setattr(record, "write", real)
    assert state_of(runs / "full").round == 1
    resume(runs / "full")
    start(plan, out=runs, name="whole")
    assert same_bits(state_of(runs / "full").server, state_of(runs / "whole").server)


def test_a_line_cut_off_in_the_metrics_is_made_again(runs: Path) -> None:
    start(small_experiment(small_method("fedavg")), out=runs, name="run")
    file = runs / "run" / "metrics.jsonl"
    first, second = file.read_text().splitlines()
    file.write_text(first + "\n" + second[:20])
    resume(runs / "run", rounds=3)
    rows = RunDir.open(runs / "run").rows()
    assert [r["round"] for r in rows] == [1, 2, 3]
    whole = start(small_experiment(small_method("fedavg"), rounds=3), out=runs, name="whole")
    assert [r["models"] for r in rows] == [r["models"] for r in whole.rows]


def test_a_run_folder_is_never_written_over_and_what_is_no_run_is_named(runs: Path) -> None:
    start(small_experiment(small_method("fedavg"), rounds=1), out=runs, name="run")
    with pytest.raises(UsageError, match="holds a run already"):
        start(small_experiment(small_method("fedavg"), rounds=1), out=runs, name="run")
    with pytest.raises(UsageError, match="not a run"):
        resume(runs)
    first = fs.run(small_method("fedavg"), out=runs, data="digits", rounds=1, clients=3, samples=200)
    second = fs.run(small_method("fedavg"), out=runs, data="digits", rounds=1, clients=3, samples=200)
    assert first.run_dir != second.run_dir


def test_a_run_without_a_round_that_was_done_gives_its_name_to_another(runs: Path) -> None:
    """The first fails in its first round; what replaces it is the run that a fresh folder would hold."""

    class Stops(Watcher):
        def started(self, *_: Any) -> None:
            raise RuntimeError("before the first round")

    plan = small_experiment(small_method("fedkf"))
    with pytest.raises(RuntimeError):
        start(replace(plan, rounds=1), out=runs, name="run", watcher=Stops())
    (runs / "run" / "last_error.txt").write_text("why it stopped")
    (runs / "run" / "clients").mkdir(exist_ok=True)
    (runs / "run" / "clients" / "000001-7.safetensors").write_bytes(b"of another run")
    start(plan, out=runs, name="run")
    start(plan, out=runs, name="fresh")
    assert same_bits(RunDir.open(runs / "run").latest()[0], RunDir.open(runs / "fresh").latest()[0])
    files = [{str(f.relative_to(runs / name)) for f in (runs / name).rglob("*")} for name in ("run", "fresh")]
    assert files[0] == files[1]
    (runs / "run" / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match="holds a run already"):  # a checkpoint is kept
        start(plan, out=runs, name="run")


def test_the_summary_has_everything_it_promises(runs: Path) -> None:
    result = start(small_experiment(small_method("fedavg")), out=runs, name="run")
    found = json.loads((runs / "run" / "result.json").read_text())
    assert found == json.loads(json.dumps(result.summary()))
    assert {"method", "data", "seed", "rounds", "models", "bytes", "seconds", "run_dir"} <= found.keys()
    assert set(found["models"]) == {"active", "overall"}
    for scores in found["models"].values():
        assert {"amp", "fm", "wlp", "accuracy_per_client", "best"} <= scores.keys()
        assert len(scores["accuracy_per_client"]) == 6
        assert scores["wlp"] <= scores["mixtures"]["worst"] <= scores["mixtures"]["mean"] <= 1
    rows = RunDir.open(runs / "run").rows()
    assert found["bytes"]["up"] == sum(sum(r["bytes"]["up"].values()) for r in rows) > 0


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 8)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x.flatten(1)))))


def own_arrays(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.integers(0, 100, (n, 4, 4)).astype(np.uint8)
    x[np.arange(n), y, :] += 150
    return x, y


@pytest.mark.parametrize("model", [Own, Own(), lambda: Own()], ids=["class", "module", "factory"])
def test_own_module_own_arrays(model: Any, runs: Path) -> None:
    arrays = (*own_arrays(90), *own_arrays(30, 1))
    settings: dict[str, Any] = {
        "data": arrays,
        "model": model,
        "clients": 3,
        "active": 1.0,
        "partition": "iid",
        "rounds": 3,
    }
    a = fs.run(fs.FedAvg(lr=0.5, epochs=3, batch=8), **settings, out=runs, workers="inline")
    b = fs.run(fs.FedAvg(lr=0.5, epochs=3, batch=8), **settings, out=runs, workers="2")
    assert a.last("active") == b.last("active"), "dropout draws from a keyed stream too"
    assert a.last("active")["amp"] > 0.5
    assert a.run_dir is not None
    with pytest.raises(UsageError, match="data was given as an object"):
        fs.resume(a.run_dir, rounds=4)
    assert len(fs.resume(a.run_dir, rounds=4, data=arrays, model=model).rows) == 4


def test_own_data_for_each_client(runs: Path) -> None:
    clients = [own_arrays(30, seed) for seed in range(4)]
    result = fs.run(fs.FedAvg(epochs=1), data=clients, model=Own, active=1.0, rounds=1, out=runs)
    assert result.experiment["clients"] == 4
    assert result.rows[0]["active"] == [0, 1, 2, 3]
    counts = json.loads((runs / Path(result.run_dir).name / "partition.json").read_text())["counts"]  # type: ignore[arg-type]
    assert [sum(row) for row in counts] == [24] * 4


def test_an_own_image_folder(runs: Path, tmp_path: Path) -> None:
    from PIL import Image

    x, y = own_arrays(36)
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / "images" / f"kind{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "images" / f"kind{label}" / f"{i}.png")
    result = fs.run(
        fs.FedAvg(epochs=1), data=str(tmp_path / "images"), model=Own, clients=2, active=1.0, rounds=1, out=None
    )
    assert result.experiment["data"].endswith("images")
    assert len(result.last("active")["accuracy_per_client"]) == 2


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"data": "minst"}, "unknown data set 'minst'; did you mean mnist?"),
        ({"model": "lenet6"}, "unknown model 'lenet6'; did you mean lenet5?"),
        ({"samples": 10**6}, "samples = 1000000: digits has only"),
        ({"clients": 2000, "samples": 400}, "400 samples for 2000 clients"),
        ({"public": 1.5}, "public = 1.5: must be a share > 0 and < 1"),
        ({"device": "tpu"}, "device = 'tpu': must be one of auto, cpu, cuda, mps"),
        ({"data": (np.full((9, 4, 4), np.nan), np.arange(9) % 3)}, "nan"),
        ({"data": (np.zeros((9, 4, 4)), np.zeros(8, int))}, "9"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(settings: dict[str, Any], line: str, runs: Path) -> None:
    with pytest.raises((UsageError, DataError)) as error:
        start(small_experiment(small_method("fedavg"), **settings), out=runs)
    assert line.lower() in str(error.value).lower()
    assert "\n" not in str(error.value)
    assert not runs.exists()


def test_one_sample_for_each_client_and_a_class_with_no_samples(runs: Path) -> None:
    """Six samples on six clients: nobody has a test, the run goes on and says so."""
    x, y = own_arrays(6)
    y = np.where(y == 1, 2, y)  # no sample of class 1
    notes = Notes()
    plan = small_experiment(small_method("fedavg"), data=(x, y), samples=None, model=Own, rounds=1, partition="iid")
    result = start(plan, out=None, watcher=notes)
    assert any("have no test samples" in line for line in notes.lines)
    assert result.last("active")["accuracy_per_client"] == [None] * 6


def test_interrupted_by_the_user_it_can_be_resumed(runs: Path) -> None:
    words = shlex.split("run fedavg --data digits --clients 6 --rounds 100000 --workers 2 --name long --out")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedstill", *words, str(runs)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )
    try:
        deadline = time.monotonic() + 240
        while not list(runs.glob("long/checkpoints/*.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"fedstill resume {runs / 'long'}" in told
    assert "Traceback" not in told
    rounds = state_of(runs / "long").round
    assert len(resume(runs / "long", rounds=rounds + 1).rows) == rounds + 1


def test_a_split_can_keep_its_seed() -> None:
    """With split_seed, seeds agree in who trains and is tested on which samples, and differ in everything else."""

    def hands(**seeds: int) -> tuple[list[list[int]], bytes, float]:
        ready = stage(small_experiment("fedavg", **seeds), Storage())
        weight = float(next(iter(ready.env.initial().values())).sum())
        return [part.tolist() for part in ready.parts], ready.exam.pool.x.numpy().tobytes(), weight

    one, two, other = hands(seed=1), hands(seed=2, split_seed=1), hands(seed=2)
    assert one[:2] == two[:2]
    assert other[0] != one[0]
    assert one[2] != two[2] == other[2]
