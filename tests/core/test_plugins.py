"""Things of a user's own, from a file outside the package: by `package.module:Name` and by entry point."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from smallest import small_experiment

from fedstill.cli import main
from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.method import Method, methods
from fedstill.core.registry import Registry, importing_only
from fedstill.core.value import build_named, plain
from fedstill.data import datasets, partitions
from fedstill.experiment.config import experiment
from fedstill.experiment.measures import measures
from fedstill.experiment.metrics import metrics
from fedstill.experiment.result import Result
from fedstill.experiment.run import resume, start
from fedstill.methods import FedAvg
from fedstill.models import build_model, models
from fedstill.parts.attacks import attacks
from fedstill.parts.gather import gathers
from fedstill.report.html import report

SOURCE = """
from dataclasses import dataclass
from typing import Any
import numpy as np
from torch import nn
from fedstill.experiment.metrics import Metric
from fedstill.core.record import Carries, State, carries, record
from fedstill.core.turn import Wrapper
from fedstill.data.partition import IID
from fedstill.methods import FedAvg
from fedstill.parts.attacks import SignFlip
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Remember, Update

@record
class Upload:
    weights: State = carries(Carries.WEIGHTS)
    mood: int = carries("how the client feels")

@dataclass(frozen=True)
class Mine(Averaging):
    paper = "none"
    def client(self, env: Any, state: Any, down: Broadcast, data: Any) -> tuple[Any, Upload]:
        state, upload = FedAvg(lr=self.lr, epochs=1, gather=self.gather).client(env, state, down, data)
        return state, Upload(upload.weights, 3)
    def template(self, env: Any) -> Upload:
        return Upload(env.form(), 0)

@dataclass(frozen=True)
class Shy(FedAvg):
    def client(self, env, state, down, data):
        return None

@dataclass(frozen=True)
class MyGather(Remember): ...
@dataclass(frozen=True)
class MyAttack(SignFlip): ...
@dataclass(frozen=True)
class MyWrapper(Wrapper): ...
@dataclass(frozen=True)
class MySplit(IID): ...

def my_data():
    x = np.random.default_rng(0).integers(0, 255, (120, 8, 8), dtype=np.uint8)
    return x, np.arange(120) % 3

class MyModel(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)
    def forward(self, x):
        return self.layer(x.flatten(1))

MY_METRIC = Metric("best", "best client", "served best", over=lambda v: max(a for a in v.each if a is not None))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a user's own, in the folder they are in."""
    (tmp_path / "users_own.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield "users_own"
    sys.modules.pop("users_own", None)
    while str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


KINDS = {
    "method": (methods, "Mine"),
    "gather": (gathers, "MyGather"),
    "attack": (attacks, "MyAttack"),
    "partition": (partitions, "MySplit"),
    "data": (datasets, "my_data"),
    "model": (models, "MyModel"),
    "metric": (metrics, "MY_METRIC"),
}
"""Every kind of thing that a user can bring: its registry, and the name in the user's file."""


@pytest.fixture
def installed(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package were installed that declares something of every kind, each under a short name."""
    entries = {r.group: (EntryPoint(f"my-{kind}", f"{own}:{name}", r.group),) for kind, (r, name) in KINDS.items()}
    monkeypatch.setattr("fedstill.core.registry.declared_in", lambda group: entries.get(group, ()))
    monkeypatch.syspath_prepend(Path.cwd())
    for registry, _ in KINDS.values():
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def commanded(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Give the command `fedstill` these words; it must end well."""
    with pytest.raises(SystemExit) as leave:
        main(line.split())
    assert not leave.value.code, capsys.readouterr().err


def run_in_every_way(names: dict[str, str], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One round of the same experiment: from Python, by command alone, and from a file; each run has its way's name."""
    plan: dict[str, Any] = {k: names[k] for k in ("attack", "partition", "data", "model")}
    plan |= {"malicious": 0.34, "clients": 3, "active": 1.0, "rounds": 1, "workers": "inline"}
    method = {"name": names["method"], "lr": 0.05, "gather": names["gather"]}
    start(experiment({**plan, "metrics": [names["metric"]], "method": method}), out=runs, name="python")

    options = " ".join(f"--{key} {value}" for key, value in plan.items())
    own = f"--set lr=0.05 --set gather={names['gather']} --set metrics={names['metric']}"
    commanded(f"run {names['method']} {options} {own} --out {runs} --name command", capsys)

    lines = [f"{key} = {json.dumps(value)}" for key, value in plan.items()]
    lines += [f'metrics = ["{names["metric"]}"]', "[method]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in method.items()]
    Path("mine.toml").write_text("\n".join(lines))
    commanded(f"run mine.toml --out {runs} --name file", capsys)


@pytest.mark.parametrize("by", ["name", "entry point"])
def test_things_of_ones_own_in_every_way_resumed_and_reported(
    by: str, own: str, runs: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """All kinds at once; every way gives the same numbers, and a report needs none of the user's code."""
    if by == "entry point":
        request.getfixturevalue("installed")
    names = {kind: f"my-{kind}" if by == "entry point" else f"{own}:{name}" for kind, (_, name) in KINDS.items()}
    run_in_every_way(names, runs, capsys)
    resume(runs / "python", rounds=2)
    for way in ("command", "file"):
        commanded(f"resume {runs / way} --rounds 2", capsys)

    results = {way: Result.read(runs / way) for way in ("python", "command", "file")}
    for result in results.values():
        assert {k: result.experiment[k]["name"] for k in ("method", "attack", "partition")} == {
            k: names[k] for k in ("method", "attack", "partition")
        }
        assert result.experiment["method"]["gather"]["name"] == names["gather"]
        assert [result.experiment[k] for k in ("data", "model")] == [names["data"], names["model"]]
        assert [row["round"] for row in result.rows] == [1, 2]
        assert [row["models"] for row in result.rows] == [row["models"] for row in results["python"].rows]
        assert set(result.rows[-1]["bytes"]["up"]) == {"weights", "mood"}
        assert result.last("overall")["best"] == max(a for a in result.per_client("overall") if a is not None)

    request.getfixturevalue("monkeypatch").undo()  # no package, no folder
    sys.modules.pop(own)
    (runs.parent / f"{own}.py").unlink()
    for way in results:
        report([runs / way], runs / f"{way}.html")
        page = (runs / f"{way}.html").read_text()
        assert '"key":"best","title":"best client"' in page
        assert all(names[kind] in page for kind in ("method", "data"))


def test_a_wrapper_of_ones_own_and_what_an_upload_carries(own: str, runs: Path) -> None:
    plan = small_experiment({"name": f"{own}:Mine", "lr": 0.05}, wrappers=f"{own}:MyWrapper", rounds=1)
    start(plan, out=runs, name="own")
    assert json.loads((runs / "own" / "experiment.json").read_text())["wrappers"] == [{"name": f"{own}:MyWrapper"}]
    assert plan.method.leaves_client()["mood"] == "how the client feels"


@pytest.mark.usefixtures("installed")
def test_what_a_package_declares_by_entry_point_is_known_by_its_short_name() -> None:
    """A plain torch module among it, which becomes a classifier by its last layer."""
    assert "my-method" in list(methods)
    made: Any = build_named(Method, {"name": "my-method", "lr": 0.5})
    assert plain(made)["name"] == "my-method"
    assert made.lr == 0.5
    assert metrics["my-metric"].title == "best client"
    assert "my-metric" not in list(measures)
    assert isinstance(build_model("my-model", (1, 8, 8), 3), Classifier)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metrics": ("users_own:my_data",)}, "metric = 'users_own:my_data': must be a Metric"),
        ({"metrics": ("users_own:NONE",)}, "metric = 'users_own:NONE': cannot import 'NONE' from users_own"),
        ({"metric": "users_own:MY_METRIC"}, "metric = 'users_own:MY_METRIC': must be a Measure"),
    ],
)
def test_what_is_no_metric_is_refused_in_one_line(own: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        small_experiment("fedavg", **settings)


@pytest.mark.parametrize("words", ["ls methods", "ls data", "advise", "doctor"])
def test_an_installed_thing_that_cannot_be_loaded_is_a_line_and_stops_nothing(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {g: (EntryPoint("gone", "not_there:Gone", g),) for g in ("fedstill.method", "fedstill.data_set")}
    monkeypatch.setattr("fedstill.core.registry.declared_in", lambda group: broken.get(group, ()))
    with pytest.raises(SystemExit) as leave:
        main(words.split())
    out, err = capsys.readouterr()
    assert not leave.value.code
    assert re.search(r"\bfed\w+\b|mnist", out.replace("fedstill", ""))
    (line,) = set(err.splitlines())
    assert re.fullmatch(r"note: .*gone.*not_there:Gone cannot be loaded: ModuleNotFoundError: .*; left out", line)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("users_own:Yours", "method = 'users_own:Yours': cannot import 'Yours' from users_own"),
        ("not_there:Mine", "method = 'not_there:Mine': cannot import not_there: ModuleNotFoundError"),
        ("users_own:Upload", "method = 'users_own:Upload': must be a subclass of Method"),
        (FedAvg, r"method = FedAvg: is a class; give a value of it, FedAvg\(…\)"),
        (7, "method = 7: must be a name, a table with a name, or a value"),
        ("users_own:Shy", r"Shy\.client: annotate what it returns"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(own: str, spec: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        small_experiment(spec)


def test_a_value_of_the_wrong_kind_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError, match=r"^lr = 'x': must be a number$"):
        FedAvg(lr="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^epochs = 2\.5: must be a whole number$"):
        FedAvg(epochs=2.5)  # type: ignore[arg-type]


def test_a_subclass_that_nobody_registered_is_called_by_its_module() -> None:
    @dataclass(frozen=True)
    class Inside(FedAvg): ...

    with pytest.raises(UsageError, match="register it under a name, or define it at the top of a module"):
        plain(Inside())


def test_a_site_imports_only_what_its_operator_named(own: str) -> None:
    with importing_only(frozenset({"users_own:MyGather"})):
        with pytest.raises(UsageError, match=r"^model users_own:MyModel: not imported here"):
            build_model("users_own:MyModel", (1, 8, 8), 3)
        with pytest.raises(UsageError, match=r"^method users_own:Mine: not imported here"):
            build_named(Method, "users_own:Mine")
        assert "users_own" not in sys.modules
        gathers: Registry[Any] = Registry("gather")
        assert gathers["users_own:MyGather"].__name__ == "MyGather"
