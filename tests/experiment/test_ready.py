"""A run owns its model: it is used on a machine that has nothing but the run's folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from smallest import small_method

import fedstill as fs
from fedstill.core.errors import RunError, UsageError
from fedstill.core.shelf import Storage
from fedstill.experiment.config import experiment
from fedstill.experiment.export import classify, write_model
from fedstill.experiment.ready import load_model
from fedstill.experiment.result import Result
from fedstill.experiment.stage import stage


def digits(scale: float = 1.0) -> tuple[Any, Any]:
    """Eight-by-eight digits; bytes, or with a scale floats from 0 to 255·scale."""
    found = fs.load("digits").train
    x, y = found.x.numpy()[:400], found.y.numpy()[:400]
    return (x if scale == 1 else (x * np.float64(scale)).astype(np.float32)), y


def trained(runs: Path, name: str = "x", **settings: Any) -> Result:
    plan: dict[str, Any] = {
        "data": digits(),
        "clients": 3,
        "active": 1.0,
        "partition": "iid",
        "rounds": 2,
        "workers": "inline",
    }
    method = small_method("fedavg", lr=0.2, epochs=3)
    return fs.run(settings.pop("method", method), out=runs, name=name, **{**plan, **settings})


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A run of arrays that nobody has any more, moved to an empty folder."""
    trained(tmp_path / "runs")
    place = tmp_path / "far" / "away"
    place.parent.mkdir()
    shutil.move(tmp_path / "runs" / "x", place)
    return place


def test_a_run_without_its_data_is_loaded_predicts_exports_and_reports(elsewhere: Path, tmp_path: Path) -> None:
    x, y = digits()
    result = Result.read(elsewhere)
    right = (result.predict(x) == y).mean()
    assert right > 0.6
    module = result.model("overall")
    assert not module.training
    assert module.class_names == tuple("0123456789")
    assert torch.equal(
        module(torch.from_numpy(x)).argmax(-1), torch.from_numpy(fs.load_model(elsewhere, "overall").predict(x))
    )
    words = [sys.executable, "-m", "fedstill", "report", str(elsewhere), "-o", str(tmp_path / "page.html")]
    done = subprocess.run(
        words,
        env={**os.environ, "FEDSTILL_DATA": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_the_ready_module_gives_what_the_run_measured(tmp_path: Path) -> None:
    """The exam's own inputs, fitted and normalised by the stage, through the bare classifier: the same logits."""
    for model in ("mlp", "lenet5"):  # lenet5: 8×8 is brought to 32×32
        result = trained(tmp_path, model, model=model)
        settings = {**result.experiment, "data": digits()}
        ready = stage(experiment(settings), Storage())
        module = result.model("active")
        raw = torch.from_numpy(digits()[0])[ready.parts[0]]
        with torch.no_grad():
            assert torch.equal(module(raw), module.classifier(ready.party(0).data.inputs()))


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_an_exported_file_gives_the_same_classes_on_a_thousand_samples(model: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    result = trained(tmp_path, model=model)
    place = tmp_path / "made" / "on the way" / "model.onnx"
    said = write_model(tmp_path / "x", place)
    assert said.startswith(f"overall → {place}")
    assert [f.name for f in place.parent.iterdir()] == ["model.onnx"], "one file, no external data"
    x = fs.load("digits").train.x[:1000]
    session = onnxruntime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"inputs": x.numpy()})
    assert (logits.argmax(-1) == result.predict(x)).all()
    known = {p.key: p.value for p in onnx.load(str(place)).metadata_props}
    assert json.loads(known["class_names"]) == list("0123456789")
    assert json.loads(known["input"])["dtype"] == "uint8"


def test_torch_export_and_safetensors_hold_the_same_model(tmp_path: Path) -> None:
    from safetensors import safe_open

    result = trained(tmp_path)
    x = torch.from_numpy(digits()[0])
    write_model(tmp_path / "x", tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(again(x).argmax(-1), torch.from_numpy(result.predict(x)))
    write_model(tmp_path / "x", tmp_path / "model.safetensors", "active")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["class_names"]) == list("0123456789")
        there = set(file.keys())
    assert there == set(result.model("active").classifier.state_dict())


@pytest.mark.parametrize(
    "scale", [1.0, 1.00001, 1 / 255, 16 / 255], ids=["bytes", "float 0…255", "float 0…1", "float 0…16"]
)
def test_an_image_file_is_read_in_the_units_of_the_data(scale: float, tmp_path: Path) -> None:
    """The same pixels, as bytes in a file: the same class as the array that the run knows."""
    x, y = digits(scale)
    result = trained(tmp_path, data=(x, y))
    classes = result.predict(x)
    assert (classes == y).mean() > 0.6
    pixels = digits()[0]
    for k in range(8):
        Image.fromarray(pixels[k, 0]).save(tmp_path / "digit.png")
        found = classify(tmp_path / "x", tmp_path / "digit.png")["probabilities"]
        assert next(iter(found)) == str(classes[k])


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1))


def test_a_model_that_came_as_an_object_needs_its_code_and_says_so(tmp_path: Path) -> None:
    result = trained(tmp_path, model=Own)
    with pytest.raises(
        UsageError,
        match=r"its model was given as an object \(.*test_ready.Own\), so its code is needed: fedstill.load_model",
    ):
        load_model(tmp_path / "x")
    x, _ = digits()
    assert (load_model(tmp_path / "x", model=Own).predict(x) == result.predict(x, model=Own)).all()
    trained(tmp_path, "module", model=Own())
    recipe = json.loads((tmp_path / "module" / "signature.json").read_text())["recipes"][0]
    assert recipe["parameters"] == {"last.weight": [10, 64], "last.bias": [10]}


def test_a_factory_by_name_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets.py").write_text(
        "import torch\ndef make(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = trained(tmp_path, model="my_nets:make")
    assert (load_model(tmp_path / "x").predict(digits()[0]) == result.predict(digits()[0])).all()


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    result = trained(tmp_path)
    x, _ = digits()
    with pytest.raises(UsageError, match="x: values from 0 to 1, but the run's images count from 0 to 255"):
        result.predict(x / 255)
    with pytest.raises(fs.FedstillError, match="x: "):
        result.predict(np.zeros((3, 7, 9), np.uint8))
    with pytest.raises(UsageError, match="unknown model of this run 'best'"):
        result.model("best")
    with pytest.raises(UsageError, match=r"must end in \.onnx, \.pt2, \.safetensors"):
        write_model(tmp_path / "x", tmp_path / "model.bin")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        write_model(tmp_path / "x", tmp_path / "file" / "model.safetensors")
    with pytest.raises(UsageError, match="no such file"):
        classify(tmp_path / "x", tmp_path / "no.png")
    (tmp_path / "x" / "signature.json").write_text("{")
    with pytest.raises(RunError, match=r"signature.json: damaged"):
        load_model(tmp_path / "x")
    with pytest.raises(UsageError, match="not a run"):
        load_model(tmp_path)
    unsaved = trained(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the run was not written"):
        unsaved.predict(x)


def test_a_single_sample_and_other_array_forms_are_taken(tmp_path: Path) -> None:
    result = trained(tmp_path)
    x, _ = digits()
    classes = result.predict(x)
    assert result.predict(x[0, 0]).tolist() == result.predict(x[0]).tolist() == classes[:1].tolist()
    assert (result.predict(x[:, 0]) == classes).all()
    assert (result.predict(x[:5].tolist()) == classes[:5]).all()
    assert (result.predict(torch.from_numpy(x).float()) == classes).all()


def test_a_clients_own_model_is_had_by_its_number(tmp_path: Path) -> None:
    result = trained(tmp_path, method=small_method("fedmd"), public=0.2)
    assert result.model("1").name == "1"
    assert result.predict(digits()[0], "1").shape == (400,)
