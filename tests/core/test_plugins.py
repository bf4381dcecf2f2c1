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
from fedstill.core.errors import UsageError
from fedstill.core.method import Method, methods
from fedstill.core.registry import Registry, importing_only
from fedstill.core.value import build_named, plain
from fedstill.experiment.measures import measures
from fedstill.experiment.metrics import metrics
from fedstill.experiment.result import Result
from fedstill.experiment.run import resume, start
from fedstill.methods import FedAvg
from fedstill.models import build_model
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


def test_parts_from_a_file_outside_run_are_written_and_resumed(own: str, runs: Path) -> None:
    plan = small_experiment(
        {"name": f"{own}:Mine", "lr": 0.05, "gather": f"{own}:MyGather"},
        attack=f"{own}:MyAttack",
        malicious=0.5,
        wrappers=f"{own}:MyWrapper",
        partition=f"{own}:MySplit",
        rounds=1,
    )
    start(plan, out=runs, name="own")
    written = json.loads((runs / "own" / "experiment.json").read_text())
    assert written["method"]["name"] == f"{own}:Mine"
    assert written["method"]["gather"]["name"] == f"{own}:MyGather"
    assert [written[part]["name"] for part in ("attack", "partition")] == [f"{own}:MyAttack", f"{own}:MySplit"]
    assert written["wrappers"] == [{"name": f"{own}:MyWrapper"}]
    result = resume(runs / "own", rounds=2)
    assert result.models == ["active", "overall"]
    assert set(result.rows[-1]["bytes"]["up"]) == {"weights", "mood"}
    assert plan.method.leaves_client()["mood"] == "how the client feels"


def test_data_model_and_metric_of_ones_own_by_config_file_and_command(
    own: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written in a config file, run and resumed by command, and shown where the file is no longer imported."""
    Path("mine.toml").write_text(
        f"""
        data = "{own}:my_data"
        model = "{own}:MyModel"
        metrics = ["{own}:MY_METRIC"]
        clients = 3
        active = 1.0
        alpha = 1.0
        rounds = 1
        workers = "inline"
        [method]
        name = "{own}:Mine"
        """
    )
    for words in ("run mine.toml --out runs", "resume runs/users_own.Mine-users_own.my_data-a1-s1 --rounds 2"):
        with pytest.raises(SystemExit) as leave:
            main(words.split())
        assert not leave.value.code, capsys.readouterr().err
    (run,) = Path("runs").iterdir()
    result = Result.read(run)
    scores = result.last("active")
    assert scores["best"] == max(a for a in scores["accuracy_per_client"] if a is not None)
    sys.modules.pop(own)
    Path(f"{own}.py").unlink()
    report([run], Path("page.html"))
    page = Path("page.html").read_text()
    assert '"key":"best","title":"best client"' in page
    assert f"{own}:Mine" in page


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


def test_a_metric_is_declared_by_entry_point_and_is_no_measure(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("best", f"{own}:MY_METRIC", "fedstill.metric")
    monkeypatch.setattr(
        "fedstill.core.registry.declared_in", lambda group: (entry,) if group == "fedstill.metric" else ()
    )
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(metrics, "_entries", dict(metrics._entries))
    assert metrics["best"].title == "best client"
    assert "best" not in list(measures)


def test_a_package_declares_things_by_entry_point(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", f"{own}:Mine", "fedstill.method")
    monkeypatch.setattr(
        "fedstill.core.registry.declared_in", lambda group: (entry,) if group == "fedstill.method" else ()
    )
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(methods, "_entries", dict(methods._entries))
    assert "mine" in list(methods)
    made: Any = build_named(Method, {"name": "mine", "lr": 0.5})
    assert plain(made)["name"] == "mine"
    assert made.lr == 0.5


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
    assert "fedavg" in out or "mnist" in out
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
