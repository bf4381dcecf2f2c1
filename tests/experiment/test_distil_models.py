"""`fedstill distil`: models from files, of different networks, become one; files that do not fit are named."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from smallest import same_bits, small_experiment, small_method

import fedstill as fs
from fedstill.cli import main
from fedstill.core.errors import DataError, UsageError
from fedstill.core.shelf import Storage
from fedstill.data.kinds import Table
from fedstill.data.renormalise import renormalised, same_form
from fedstill.experiment.distil import distil, fusion, read_model
from fedstill.experiment.export import write_model
from fedstill.experiment.predict_rows import classify_rows
from fedstill.experiment.ready import load_model
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage

LIGHT = {"generations": 10, "synthesis_steps": 6, "synthetic": 64, "noise": 32, "generator_lr": 0.02,
         "distill_lr": 0.1, "distill_batch": 32}  # fmt: skip


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three clients trained alone on IID digits, the third with another network; their models in files."""
    folder = tmp_path_factory.mktemp("hospitals")
    method = {"name": "local", "lr": 0.2, "epochs": 12, "batch": 8}
    plan = small_experiment(
        method, clients=3, active=1.0, rounds=1, samples=500, partition="iid", models="mlp,mlp,resnet8-slim"
    )
    start(plan, out=folder, name="run")
    files = [folder / f"{k}.safetensors" for k in range(3)]
    for k, file in enumerate(files):
        write_model(folder / "run", file, str(k))
    return files


def test_a_file_says_which_network_it_is(three: list[Path]) -> None:
    assert [read_model(file).recipe for file in three] == ["mlp", "mlp", "resnet8-slim"]


def test_a_file_is_used_as_the_run_it_came_from(three: list[Path], tmp_path: Path) -> None:
    x = torch.arange(2 * 64, dtype=torch.uint8).reshape(2, 1, 8, 8) % 17
    for client, file in enumerate(three):
        of_run = load_model(file.parent / "run", str(client)).probabilities(x)
        assert torch.equal(load_model(file).probabilities(x), of_run)
    np.savez(tmp_path / "digits.npz", x=x.numpy())
    found = classify_rows(three[2], tmp_path / "digits.npz")["rows"]
    assert [row["probability"] for row in found] == of_run.max(-1).values.tolist()
    with pytest.raises(UsageError, match=r"unknown model of .* 'overall'; known: 0"):
        load_model(three[0], "overall")


def test_three_models_of_two_networks_become_one_that_tells_digits(three: list[Path], tmp_path: Path) -> None:
    """The student has seen no image, yet it is far above chance (.1) on the digits' test part."""
    target = tmp_path / "made" / "one.safetensors"
    found = distil(three, target, fusion("co-boosting", LIGHT), model="mlp")
    assert set(found["shares"]) == {str(file) for file in three}
    ready = stage(small_experiment({"name": "local"}, model="mlp"), Storage())
    module = ready.env.module(load_file(target))
    with torch.no_grad():
        right = module.eval()(ready.exam.pool.inputs()).argmax(-1) == ready.exam.pool.y
    assert right.float().mean() > 0.35
    assert read_model(target).recipe == "mlp"


def test_the_same_seed_gives_the_same_bits_and_another_does_not(three: list[Path], tmp_path: Path) -> None:
    how, made = fusion("co-boosting", {**LIGHT, "generations": 2}), []
    for place, seed in enumerate((1, 1, 2)):
        distil(three[:2], tmp_path / f"{place}.safetensors", how, seed=seed)
        made.append(load_file(tmp_path / f"{place}.safetensors"))
    assert same_bits(made[0], made[1])
    assert not same_bits(made[0], made[2])


def code(words: list[str]) -> object:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main(words)
    return left.value.code


def test_by_command(three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "one.safetensors"
    words = ["--out", str(target), "--method", "dense", "--set", "generations=1", "--set", "synthesis_steps=1"]
    assert code(["distil", *map(str, three[:2]), *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["network"] == "mlp"
    assert list(told["shares"].values()) == [0.5, 0.5]
    assert target.exists()
    assert code(["distil", str(three[0]), "--out", str(target)]) == 2
    assert "at least two are needed" in capsys.readouterr().err


def test_what_does_not_fit_is_named(three: list[Path], tmp_path: Path) -> None:
    how, target = fusion("dense", {}), tmp_path / "one.safetensors"
    bare = tmp_path / "bare.safetensors"
    save_file({"w": torch.zeros(1)}, bare)
    with pytest.raises(DataError, match=r"bare.safetensors: says nothing of its inputs and classes"):
        distil([three[0], bare], target, how)
    with pytest.raises(UsageError, match=r"nowhere.safetensors: no such file"):
        distil([three[0], tmp_path / "nowhere.safetensors"], target, how)
    with pytest.raises(UsageError, match=r"2.safetensors: its weights are not those of mlp"):
        distil(three, target, how, recipes=["mlp", "mlp", "mlp"])
    with pytest.raises(UsageError, match=r"models = mlp: 1 names for 3 files"):
        distil(three, target, how, recipes=["mlp"])
    with pytest.raises(UsageError, match=r"method = fedavg: does not fuse models without data"):
        fusion("fedavg", {})
    other = tmp_path / "other.safetensors"
    told = {
        "class_names": '["cat", "dog"]',
        "input": json.dumps(dict(read_model(three[0]).about)),
        "recipe": '{"name": "mlp"}',
    }
    save_file(load_file(three[0]), other, metadata=told)
    with pytest.raises(UsageError, match=r"other.safetensors: its classes are not those of"):
        distil([three[0], other], target, how)
    with pytest.raises(UsageError, match=r"bare.safetensors: cannot write there"):
        distil(three, bare / "one.safetensors", how)
    assert not target.exists()


def test_tables_of_hospitals_that_trained_apart_become_one_model(tmp_path: Path) -> None:
    """Each has its own means, and only the second a missing age; whoever is above 50 is ill, everywhere."""
    files = []
    for place, (low, high) in enumerate(((20, 70), (35, 90))):
        age = np.linspace(low, high, 200)
        frame = pandas.DataFrame({"age": age, "sex": ["f", "m"] * 100, "ill": np.where(age > 50, "yes", "no")})
        frame.loc[3 * place :: 60 if place else 999, "age"] = None if place else 20.0
        method = small_method("local", epochs=20, optimizer="adam", lr=0.01)
        run = fs.run(method, data=frame, label="ill", clients=1, active=1.0, rounds=1, partition="iid",
                     workers="inline", out=tmp_path, name=f"hospital {place}", progress=False)  # fmt: skip
        files.append(tmp_path / f"{place}.safetensors")
        write_model(run.run_dir, files[-1], "0")
    distil(files, tmp_path / "one.safetensors", fusion("dense", LIGHT))
    new = pandas.DataFrame({"age": [25.0, 32.0, 68.0, 75.0], "sex": ["f", "m", "f", "m"]})
    assert load_model(tmp_path / "one.safetensors").predict(new).tolist() == [0, 0, 1, 1]


def test_rows_are_brought_to_another_sites_means() -> None:
    """Age 50 is 1 deviation above a mean of 40, and 0 above one of 50; a missing age stays the mean. None of b's is."""
    a = Table(("age",), (40.0,), (10.0,), ("age",), ("sex",), (("f", "m"),))
    b = Table(("age",), (50.0,), (5.0,), (), ("sex",), (("f", "m"),))
    rows = a.inputs(torch.tensor([[50.0, 1.0], [float("nan"), 0.0], [45.0, 0.0]]))
    assert renormalised(rows, a, b).tolist() == [[0, 0, 1], [0, 1, 0], [-1, 1, 0]]
    back = renormalised(b.inputs(torch.tensor([[50.0, 1.0]])), b, a)
    assert back.tolist() == [[1, 0, 0, 1]]
    assert same_form(a, b)
    assert not same_form(a, Table(("age",), (40.0,), (10.0,), ("age",), ("sex",), (("m", "f"),)))
